import { useOverview } from "../api/overview";
import { useSetting } from "../frame/address";
import { useTitle } from "../frame/shared";
import Charts, { RangePicker } from "../parts/charts";

/** How models and devices did over time. */
export default function ChartsPage() {
  useTitle("Charts");
  const { data } = useOverview();
  const [model, setModel] = useSetting("m");
  return (
    <>
      <div className="page-head">
        <h1>Charts</h1>
        <select aria-label="Model" value={model} onChange={(event) => setModel(event.target.value)}>
          <option value="">all models</option>
          {[...new Set([...(data?.models ?? []).map(({ id }) => id), ...(model === "" ? [] : [model])])].map((id) => (
            <option key={id}>{id}</option>
          ))}
        </select>
        <RangePicker />
      </div>
      <Charts {...(model === "" ? {} : { model })} />
    </>
  );
}
