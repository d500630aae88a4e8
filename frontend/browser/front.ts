/** A reverse proxy before a server: at a prefix, and with a cable that can be pulled out. */

import { createServer, request, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";

export class Front {
  readonly #server: Server;
  readonly #open = new Set<Socket>();
  #port = 0;

  /** `prefix`: such as `/llm`, taken away before the server is asked. */
  private constructor(
    private readonly target: string,
    private readonly prefix: string,
  ) {
    this.#server = createServer((question, answer) => {
      const path = question.url ?? "/";
      if (path === this.prefix) {
        answer.writeHead(301, { Location: `${this.prefix}/` }).end();
        return;
      }
      if (!path.startsWith(this.prefix)) {
        answer.writeHead(404).end("not below the prefix");
        return;
      }
      const on = request(new URL(path.slice(this.prefix.length), this.target), { method: question.method, headers: question.headers }, (told) => {
        answer.writeHead(told.statusCode ?? 502, told.headers);
        answer.flushHeaders();
        told.pipe(answer);
        told.on("error", () => answer.destroy());
      });
      on.on("error", () => answer.destroy());
      answer.on("close", () => on.destroy());
      question.pipe(on);
    });
    this.#server.on("connection", (socket) => {
      this.#open.add(socket);
      socket.on("close", () => this.#open.delete(socket));
    });
  }

  static async of(target: string, prefix = ""): Promise<Front> {
    const front = new Front(target, prefix);
    await front.plug();
    return front;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}${this.prefix}`;
  }

  /** Every connection breaks, and no new one is taken. */
  async unplug(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    for (const socket of this.#open) socket.destroy();
    await closed;
  }

  /** At the port that it had. */
  async plug(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(this.#port, "127.0.0.1", resolve));
    this.#port = (this.#server.address() as AddressInfo).port;
  }
}
