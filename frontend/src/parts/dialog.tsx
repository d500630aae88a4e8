import { useEffect, useId, useRef, type ReactNode } from "react";

/** A modal dialog: the browser's own, which keeps the focus inside, closes on Escape, and gives the focus back. */
export function Dialog(props: { title: string; onClose: () => void; className?: string; children: ReactNode }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={ref}
      className={props.className}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
      onClick={(event) => {
        // What is not inside the dialog is its backdrop.
        if (event.target === ref.current) props.onClose();
      }}
    >
      <div className="dialog-body">
        <h2 id={id}>{props.title}</h2>
        {props.children}
      </div>
    </dialog>
  );
}
