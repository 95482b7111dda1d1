import { Call } from './call.ts'
import { type CallOptions, type Client, readJson } from './client.ts'
import { type Args, requestOf, type Shape } from './request.ts'

const PAGE = 100
/** Ids of a list that are remembered to yield no item twice. */
const SEEN_MAX = 100_000

type AnyPage = { data: unknown[]; total?: number; limit?: number; next_cursor?: string | null }

/** A list. Nothing is requested before it is iterated. */
export class List<Item, Page> implements AsyncIterable<Item> {
  /** Number of all items, once the first page has arrived; null before, and of lists that are not counted. */
  total: number | null = null
  readonly #client: Client
  readonly #route: string
  readonly #shape: Shape
  readonly #args: Args
  readonly #options: CallOptions | undefined

  constructor(client: Client, route: string, shape: Shape, args: Args = {}, options?: CallOptions) {
    this.#client = client
    this.#route = route
    this.#shape = shape
    this.#args = args
    this.#options = options
  }

  /** Requests the page that the arguments describe. */
  page(): Call<Page> {
    return this.#request<Page>(this.#args)
  }

  /** Yields the items of all pages from `offset` or `cursor` on, each once even if it moves between pages meanwhile. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Item> {
    const seen = new Set<unknown>()
    let args: Args = { limit: PAGE, ...this.#args }
    for (;;) {
      const page = await this.#request<AnyPage>(args)
      this.total = page.total ?? null
      for (const item of page.data) {
        const id = (item as { id?: unknown } | null)?.id
        if (id !== undefined && seen.has(id)) continue
        if (id !== undefined && seen.size < SEEN_MAX) seen.add(id)
        yield item as Item
      }
      if ('next_cursor' in page) {
        if (!page.next_cursor) return
        args = { ...args, cursor: page.next_cursor }
      } else {
        if (page.data.length < (page.limit ?? PAGE)) return
        args = { ...args, offset: Number(args.offset ?? 0) + page.data.length }
      }
    }
  }

  /** Returns the items of all pages, at most `max`. */
  async all({ max = Number.POSITIVE_INFINITY }: { max?: number } = {}): Promise<Item[]> {
    const items: Item[] = []
    if (max <= 0) return items
    for await (const item of this) if (items.push(item) >= max) break
    return items
  }

  #request<T>(args: Args): Call<T> {
    const send = async () => {
      const request = requestOf(this.#route, this.#shape, args, this.#client)
      return this.#client.request<T>({ ...request, accept: 'application/json' }, readJson, this.#options)
    }
    return new Call(send())
  }
}
