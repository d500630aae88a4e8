import { Dialog } from "../parts/dialog";
import { MORE, PLACES } from "./places";

const KEYS: readonly [string, string][] = [
  ["Ctrl K", "Find a page, a model or an act"],
  ["/", "Search on this page"],
  ["?", "This list"],
  ...[...PLACES, ...MORE].map((place): [string, string] => [`g ${place.letter}`, place.title]),
];

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl className="keys">
        {KEYS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              {keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <div className="buttons">
        <button type="button" onClick={onClose} autoFocus>
          Close
        </button>
      </div>
    </Dialog>
  );
}
