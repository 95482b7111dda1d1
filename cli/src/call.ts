import type { CallOptions, Client, Download, EventStream, List } from '@muster/client'
import { type ApiCommand, type CommandTable, takesProject } from './commands.ts'
import type { Connection } from './connection.ts'

type Args = Record<string, unknown>
export type Options = CallOptions & { onUnknown?: (event: { event: string; data: unknown }) => void }
export type Event = { event: string; id?: string; data: any }

type AnyFunction = (client: Client, args: Args, options?: Options) => any

/** Sends commands through the client. */
export class Caller {
  readonly connection: Connection
  readonly #table: CommandTable

  constructor(connection: Connection, table: CommandTable) {
    this.connection = connection
    this.#table = table
  }

  /** Sends a request. Returns the data of its answer, or its content if that is not JSON. */
  async call(command: ApiCommand, args: Args, options?: Options): Promise<any> {
    return (await this.#function(command))(await this.connection.client(takesProject(command)), args, options)
  }

  async download(command: ApiCommand, args: Args, options?: Options): Promise<Download> {
    return this.call(command, args, options)
  }

  async list(command: ApiCommand, args: Args, options?: Options): Promise<List<any, any>> {
    return (await this.#function(command))(await this.connection.client(takesProject(command)), args, options)
  }

  /** Starts work; `settled()` of the result waits for it. */
  async work(command: ApiCommand, args: Args, options?: Options): Promise<{ call: any }> {
    // In an object, because awaiting the call would await its answer.
    return { call: (await this.#function(command))(await this.connection.client(takesProject(command)), args, options) }
  }

  /** Opens the event stream of a command. */
  async stream(command: ApiCommand, args: Args, options?: Options): Promise<EventStream<Event, any>> {
    return (await this.#function(command, true))(await this.connection.client(takesProject(command)), args, options)
  }

  commandById(id: string): ApiCommand {
    const command = this.#table.byId(id)
    if (!command) throw new Error(`there is no operation ${id}`)
    return command
  }

  /** Returns the command of some words. */
  find(words: readonly string[]): ApiCommand | undefined {
    return this.#table.below(words).find(each => each.words.length === words.length)
  }

  callById(id: string, args: Args, options?: Options): Promise<any> {
    return this.call(this.commandById(id), args, options)
  }

  /** Returns the function of a command; for a synchronized profile it is made from the description of its service. */
  async #function(command: ApiCommand, isStream = false): Promise<AnyFunction> {
    if (this.#table.isSynced) return (await import('./made-calls.ts')).functionOf(command, this.#table, isStream)
    const operations = (await import('@muster/client/operations')) as unknown as Record<string, AnyFunction>
    return operations[isStream && command.stream?.selected_by ? `${command.id}Stream` : command.id]
  }
}
