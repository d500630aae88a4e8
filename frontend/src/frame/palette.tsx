import { Command } from "cmdk";
import { useLocation } from "wouter";
import type { Model } from "../api/types";
import { canStop, label, mainAct, moreActs, type Act } from "../format/acts";
import { Dialog } from "../parts/dialog";
import { modelPage } from "./address";
import { MORE, PLACES } from "./places";
import { setTheme, THEMES } from "./theme";

/** Everything that can be reached or done, by typing a part of its name. */
export default function Palette(props: { models: readonly Model[]; onAct: (model: string, act: Act) => void; onClose: () => void }) {
  const { models, onClose } = props;
  const [, navigate] = useLocation();
  const then = (work: () => void) => () => {
    onClose();
    work();
  };
  return (
    <Dialog title="Find" onClose={onClose} className="palette">
      <Command label="Pages, models and acts" loop>
        <Command.Input placeholder="Page, model or act…" autoFocus />
        <Command.List label="Found">
          <Command.Empty>Nothing has that name.</Command.Empty>
          <Command.Group heading="Pages">
            {[...PLACES, ...MORE].map((place) => (
              <Command.Item key={place.path} value={`page ${place.title}`} keywords={[place.words]} onSelect={then(() => navigate(place.path))}>
                {place.title} <kbd>g {place.letter}</kbd>
              </Command.Item>
            ))}
          </Command.Group>
          {models.length > 0 && (
            <Command.Group heading="Models">
              {models.map((model) => (
                <Command.Item key={model.id} value={`model ${model.id}`} keywords={model.aliases} onSelect={then(() => navigate(modelPage(model.id)))}>
                  {model.id} <span className="note">{model.instance?.state ?? "stopped"}</span>
                </Command.Item>
              ))}
            </Command.Group>
          )}
          <Command.Group heading="Acts">
            {models.flatMap((model) =>
              actsOf(model).map((act) => (
                <Command.Item key={`${model.id} ${act}`} value={`act ${label(act, model.instance)} ${act} ${model.id}`} onSelect={then(() => props.onAct(model.id, act))}>
                  {label(act, model.instance)} {model.id}
                </Command.Item>
              )),
            )}
            {THEMES.map((theme) => (
              <Command.Item key={theme} value={`theme ${theme}`} onSelect={then(() => setTheme(theme))}>
                Theme: {theme}
              </Command.Item>
            ))}
          </Command.Group>
        </Command.List>
      </Command>
    </Dialog>
  );
}

function actsOf(model: Model): Act[] {
  const main = mainAct(model.instance);
  const acts: Act[] = main === null ? [] : [main];
  if (canStop(model.instance)) acts.push("stop");
  acts.push(...moreActs(model.instance), model.pinned ? "unpin" : "pin");
  return acts;
}
