import { Call, type Wait, WorkCall } from './call.ts'
import { type Answer, type AnswerReader, type CallOptions, type Client, readJson } from './client.ts'
import { Download } from './download.ts'
import { List } from './list.ts'
import { type Args, requestOf, type Shape } from './request.ts'
import { EventStream, type StreamEvent, type StreamOptions, type StreamShape } from './stream.ts'

/** A function of an operation; arguments are optional if none is required. `action` is what policies allow, if any. */
export type OperationFunction<A, R, O = CallOptions> = { readonly action: string | undefined } & ({} extends A
  ? (client: Client, args?: A, options?: O) => R
  : (client: Client, args: A, options?: O) => R)

/** An operation function without its first parameter. */
export type Method<F> = F extends (client: Client, ...rest: infer P) => infer R ? (...rest: P) => R : never

type AnyFunction = (client: Client, args?: any, options?: any) => any

/** Sends a request; errors of its arguments reject as errors of the service do. */
async function send<T>(
  client: Client,
  [route, shape]: readonly [route: string, shape: Shape],
  args: Args | undefined,
  options: CallOptions | undefined,
  [accept, read]: readonly [accept: string, read: AnswerReader<T>] = ['application/json', readJson],
): Promise<Answer<T>> {
  return client.request({ ...requestOf(route, shape, args, client), accept }, read, options)
}

/** An operation and its action. */
const operation = ({ action }: Shape, run: AnyFunction): any => Object.assign(run, { action })

/** An operation that answers with JSON. */
export const call = <A, T>(route: string, shape: Shape = {}): OperationFunction<A, Call<T>> =>
  operation(shape, (client, args, options) => new Call(send<T>(client, [route, shape], args, options)))

/** An operation that starts work. */
export const work = <A, T, S>(route: string, shape: Shape & { wait: Wait }): OperationFunction<A, WorkCall<T, S>> =>
  operation(shape, (client, args, options) => {
    const answer = send<T>(client, [route, shape], args, options)
    return new WorkCall<T, S>(answer, {
      client,
      wait: shape.wait,
      args: args ?? {},
      isDelete: route.startsWith('DELETE'),
    })
  })

/** An operation that answers with a page of a list. */
export const list = <A, Page extends { data: unknown[] }>(
  route: string,
  shape: Shape = {},
): OperationFunction<A, List<Page['data'][number], Page>> =>
  operation(shape, (client, args, options) => new List(client, route, shape, args, options))

/** An operation that streams events. */
export const stream = <A, E extends StreamEvent, Result>(
  route: string,
  shape: StreamShape,
  more: Args = {},
): OperationFunction<A, EventStream<E, Result>, StreamOptions> =>
  operation(shape, (client, args, options) => new EventStream(client, route, shape, { ...args, ...more }, options))

/** An operation that answers with bytes, text, or lines of JSON. */
export const download = <A, Line = unknown>(
  route: string,
  shape: Shape = {},
): OperationFunction<A, Call<Download<Line>>> =>
  operation(shape, (client, args, options) => {
    const read: AnswerReader<Download<Line>> = async (response, reading) => new Download(response, reading)
    return new Call(send(client, [route, shape], args, options, ['*/*', read]))
  })

type Tree = { [name: string]: AnyFunction | Tree }

/** Binds the functions of a tree to a client. */
export function bind(tree: object, client: Client): object {
  return Object.fromEntries(
    Object.entries(tree as Tree).map(([name, entry]) => [
      name,
      typeof entry === 'function'
        ? (args?: unknown, options?: unknown) => entry(client, args, options)
        : bind(entry, client),
    ]),
  )
}
