import type { components, operations } from "./schema";

type Schemas = components["schemas"];

export type Status = Schemas["StatusOut"];
export type Model = Schemas["ModelOut"];
export type Instance = Schemas["InstanceOut"];
export type State = Schemas["State"];
export type Device = Schemas["DeviceOut"];
export type Reservation = Schemas["ReservationOut"];
export type Queue = Schemas["QueueOut"];
export type Plan = Schemas["PlanOut"];
export type MMEvent = operations["stream_events"]["responses"][200]["content"]["text/event-stream"];
