import { setTimeout as sleep } from 'node:timers/promises'
import { startDouble } from '#local/double/server.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { type Client, client } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase } from '../support/postgres.ts'
import { costRows, dbosProgram, floorProgram, postTo } from './costs.ts'
import { rate, start } from './http.ts'
import { percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'
import { alone, CALLERS, type Target, together } from './turn-load.ts'

/**
 * What front ends without a server in between wait for: the OpenAI mount next to the API and next to a bare proxy to
 * the model, tokens of end users next to keys, and the event stream of a session. Usage: node test/bench/run.ts fronts
 */
const WARM_UP = 100
const STREAMS = 80
const MESSAGES = 150
const END_USERS = 4
/** Longest wait for a frame. */
const FRAME_MS = 5000

export async function run(seconds = 6): Promise<Row[]> {
  const app = await startAgentApp({ workers: [] })
  const double = await startDouble({})
  const env = {
    ...testEnvironment(app.databaseUrl),
    LOG_LEVEL: 'info',
    WORKER_CONCURRENCY: '32',
    DATABASE_POOL_MAX: '20',
    MODEL_URL: `${double.url}/v1`,
  }
  const token = app.key.token as string
  const messages = [{ role: 'user', content: 'one two three' }]
  const costs = await costRows(
    'completion of a model by /openai/v1',
    {
      processes: { web: { script: 'src/web.ts' }, worker: { script: 'jobs/worker.ts', args: ['generation'] } },
      env,
      call: url =>
        postTo(`${url}/openai/v1/chat/completions`, { model: `${app.providerId}/double-1`, messages }, token),
    },
    {
      proxy: floorProgram(env, url => postTo(`${url}/proxy/chat/completions`, { model: 'double-1', messages })),
      'DBOS, one step': dbosProgram({ DATABASE_URL: await createDatabase(), MODEL_URL: env.MODEL_URL }, '/turn'),
    },
  )
  const web = await start('src/web.ts', env)
  const worker = await start('jobs/worker.ts', env, ['generation'])
  const floor = await start('test/bench/floor.ts', env)
  for (const { child } of [web, worker, floor]) child.stdout?.resume()
  const completion = (model: string): Target => ({
    url: web.url,
    path: '/openai/v1/chat/completions',
    token,
    body: { model, messages },
  })
  const turn: Target = {
    url: web.url,
    path: `/api/v1/agents/${app.agentId}/generate?wait=true`,
    token,
    body: { messages },
  }
  const bare = completion(`${app.providerId}/double-1`)
  const proxy: Target = {
    url: floor.url,
    path: '/proxy/chat/completions',
    token: '',
    body: { model: 'double-1', messages },
  }
  const halves = async (target: Target) => (await together(target, seconds / 2, '')).requests.average
  try {
    for (const target of [turn, completion(app.agentId), bare, proxy]) await alone(target, WARM_UP, '')
    return [
      ...costs,
      await compare('turn by /openai/v1, of the turn by /api/v1', '>= 0.95', {
        ours: () => halves(completion(app.agentId)),
        theirs: () => halves(turn),
      }),
      await compare(`completion of a model by /openai/v1, ${CALLERS} callers, of the proxy`, '>= 0.4', {
        ours: () => halves(bare),
        theirs: () => halves(proxy),
      }),
      await firstDeltaRow(bare, proxy),
      ...(await endUserRows(client(web.url, token), app.agentId, web.url, seconds / 2)),
    ]
  } finally {
    for (const { child } of [web, worker, floor]) child.kill('SIGKILL')
    await double.close()
    await app.close()
  }
}

/** Compares two rates in alternating halves: a machine that slows down slows both. */
async function compare(
  what: string,
  target: string,
  { ours, theirs }: Record<'ours' | 'theirs', () => Promise<number>>,
): Promise<Row> {
  const [a, b, c, d] = [await theirs(), await ours(), await theirs(), await ours()]
  const [base, got] = [(a + c) / 2, (b + d) / 2]
  const note = `${Math.round(got)}/s against ${Math.round(base)}/s`
  return { what, value: rounded(got / base, 2), unit: 'x', target, note }
}

async function firstDeltaRow(ours: Target, theirs: Target): Promise<Row> {
  const [got, base] = [percentile(await firstDeltas(ours), 0.5), percentile(await firstDeltas(theirs), 0.5)]
  return {
    what: 'first delta of a streamed completion, p50, of the proxy',
    value: rounded(got / base, 2),
    unit: 'x',
    target: '<= 2',
    note: `${rounded(got)} ms against ${rounded(base)} ms`,
  }
}

/** Milliseconds until the first text of a streamed completion. */
async function firstDeltas({ url, path, token, body }: Target): Promise<number[]> {
  const taken: number[] = []
  for (let n = 0; n < STREAMS; n++) {
    const started = performance.now()
    const answer = await fetch(`${url}${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, stream: true }),
    })
    let text = ''
    for await (const chunk of (answer.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream())) {
      text += chunk
      if (/"content":"[^"]/.test(text)) break
    }
    taken.push(performance.now() - started)
    await sleep(20)
  }
  return taken
}

/** Reads of a session by a token of an end user and by a key, and the frames of its event stream. */
async function endUserRows(key: Client, agentId: string, url: string, seconds: number): Promise<Row[]> {
  const made = async (path: string, body: object) => {
    const reply = await key.post(path, body)
    if (reply.status !== 201) throw new Error(`${path} answered ${reply.status}: ${JSON.stringify(reply.body)}`)
    return reply.body
  }
  const endUser = async () => {
    const actor = await made('/actors', { name: 'caller' })
    const session = await made('/sessions', { agent_id: agentId, actor_id: actor.id })
    const { token } = await made(`/actors/${actor.id}/tokens`, {
      agent_ids: [agentId],
      limits: { requests_per_minute: 12_000 },
      allow_unbounded_agents: true,
    })
    return { session_id: session.id as string, token: token as string }
  }
  type EndUser = Awaited<ReturnType<typeof endUser>>
  const reads = (users: readonly EndUser[], tokenOf: (user: EndUser) => string) =>
    rate(
      {
        url,
        requests: users.map(user => ({
          path: `/api/v1/sessions/${user.session_id}`,
          headers: { authorization: `Bearer ${tokenOf(user)}` },
        })),
      },
      seconds,
      200,
    )
  // As many as one half needs: an end user has at most 12,000 requests a minute.
  const endUsers = () => Promise.all(Array.from({ length: END_USERS }, endUser))
  const halves = [await endUsers(), await endUsers()]
  const [users] = halves
  const read = await compare('read of a session by a token of an end user, of a key', '>= 0.9', {
    ours: () => reads(halves.pop() as EndUser[], user => user.token),
    theirs: () => reads(users, () => key.token as string),
  })
  return [read, ...(await streamRows(key, users[0].session_id, url))]
}

/** Times from a message to its frame in the event stream of its session. */
async function streamRows(key: Client, sessionId: string, url: string): Promise<Row[]> {
  const closing = new AbortController()
  const stream = await fetch(`${url}/api/v1/sessions/${sessionId}/stream`, {
    headers: { authorization: `Bearer ${key.token}` },
    signal: closing.signal,
  })
  if (stream.status !== 200) throw new Error(`a stream answered ${stream.status}: ${await stream.text()}`)
  const arrivals = new Map<string, number>()
  const reading = (async () => {
    let text = ''
    for await (const chunk of (stream.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream())) {
      const now = performance.now()
      text += chunk
      const frames = text.split('\n\n')
      text = frames.pop() as string
      for (const frame of frames) for (const [id] of frame.matchAll(/doc_[0-9a-z]{26}/g)) arrivals.set(id, now)
    }
  })().catch(() => {})
  const [sinceAnswer, sinceRequest]: number[][] = [[], []]
  try {
    for (let n = 0; n < MESSAGES; n++) {
      const sent = performance.now()
      const { status, body } = await key.post(`/sessions/${sessionId}/messages`, { message: `message ${n}` })
      const answered = performance.now()
      if (status !== 201) throw new Error(`a message answered ${status}: ${JSON.stringify(body)}`)
      while (!arrivals.has(body.document_id)) {
        if (performance.now() - answered > FRAME_MS) throw new Error(`no frame of message ${n}`)
        await sleep(1)
      }
      const arrived = arrivals.get(body.document_id) as number
      sinceAnswer.push(Math.max(0, arrived - answered))
      sinceRequest.push(arrived - sent)
      await sleep(10)
    }
  } finally {
    closing.abort()
    await reading
  }
  return [
    {
      what: 'message to the stream of its session, from the answer after the commit, p50',
      value: rounded(percentile(sinceAnswer, 0.5)),
      unit: 'ms',
      target: '<= 15',
      note: `p95 ${rounded(percentile(sinceAnswer, 0.95))} ms; from the request p50 ${rounded(percentile(sinceRequest, 0.5))} ms`,
    },
  ]
}
