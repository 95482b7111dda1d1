import { Agent, type Dispatcher, fetch as undiciFetch } from 'undici'

/**
 * Returns a dispatcher without the limits of the HTTP library, which ends a response after 300 s without a header or a
 * byte: its calls have separate limits.
 */
export const withoutTimeouts = (dispatcher: Dispatcher): Dispatcher =>
  dispatcher.compose(
    dispatch => (options, handler) => dispatch({ ...options, headersTimeout: 0, bodyTimeout: 0 }, handler),
  )

const connections = withoutTimeouts(new Agent({ allowH2: false }))

/** `fetch` without the limits of the HTTP library, for a URL, not for a `Request`. */
export const untimedFetch: typeof globalThis.fetch = async (input, init) => {
  const { headers, ...rest } = init ?? {}
  const response = await undiciFetch(String(input), {
    ...(rest as object),
    headers: Object.fromEntries(new Headers(headers)),
    dispatcher: connections,
  })
  return response as unknown as Response
}
