import autocannon from 'autocannon'

/** Waited turns, or anything that is requested like them. */

export const CALLERS = 16

export type Target = { url: string; path: string; token: string; body: object }

const headersOf = ({ token }: Target) => ({ authorization: `Bearer ${token}`, 'content-type': 'application/json' })

export const post = ({ url, path, body, ...target }: Target, query: string, more: object = {}) =>
  fetch(`${url}${path}${query}`, {
    method: 'POST',
    headers: headersOf({ url, path, body, ...target }),
    body: JSON.stringify({ ...body, ...more }),
  })

/** Milliseconds of each of `count` waited turns, one after the other. */
export async function alone(target: Target, count: number, query = '?wait=true'): Promise<number[]> {
  const taken: number[] = []
  for (let n = 0; n < count; n++) {
    const started = performance.now()
    const answer = await post(target, query)
    if (answer.status !== 200) throw new Error(`a turn answered ${answer.status}: ${await answer.text()}`)
    await answer.arrayBuffer()
    taken.push(performance.now() - started)
  }
  return taken
}

/** Milliseconds of each of `count` waited turns of many concurrent callers. */
export async function counted(target: Target, count: number): Promise<number[]> {
  const taken: number[] = []
  const load = autocannon({
    url: `${target.url}${target.path}?wait=true`,
    method: 'POST',
    headers: headersOf(target),
    body: JSON.stringify(target.body),
    connections: CALLERS,
    amount: count,
  })
  load.on('response', (_client, status, _bytes, ms) => {
    if (status === 200) taken.push(ms)
  })
  await load
  if (taken.length !== count) throw new Error(`${count - taken.length} of ${count} turns were not answered with 200`)
  return taken
}

/** Waited turns of many concurrent callers. */
export async function together(target: Target, seconds: number, query = '?wait=true'): Promise<autocannon.Result> {
  const result = await autocannon({
    url: `${target.url}${target.path}${query}`,
    method: 'POST',
    headers: headersOf(target),
    body: JSON.stringify(target.body),
    connections: CALLERS,
    duration: seconds,
  })
  if (Object.keys(result.statusCodeStats).join() !== '200')
    throw new Error(`turns answered ${JSON.stringify(result.statusCodeStats)}`)
  return result
}
