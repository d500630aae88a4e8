/** A model's place in the API. Ids may hold any character but are cut at `/`, as the server's routes are; an encoded
 *  slash would be the same to the server, but not to every proxy. */
export function modelPath(id: string, act?: string): string {
  const place = `api/models/${id.split("/").map(encodeURIComponent).join("/")}`;
  return act === undefined ? place : `${place}/${act}`;
}
