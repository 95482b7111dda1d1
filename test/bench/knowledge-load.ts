import { randomFillSync } from 'node:crypto'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { type CachedCodes, nearestCodes } from '#content/index/vectors/code-cache.ts'
import { codeBits } from '#content/index/vectors/codes.ts'
import { client, type TestApp } from '../support/app.ts'
import { start } from './http.ts'
import { postmaster, processorTime } from './measure.ts'
import type { Row } from './rows.ts'

const CALLERS = 8
const WARM_MS = 4000
const ROUNDS = 3
const ROUND_MS = 3000

/**
 * Searches of a project of 10,000 chunks by several concurrent callers: how many a second, and the processor time of each.
 * By a key without policies, whose searches compare codes that the process keeps, and by a key that may see half of the
 * documents, whose searches scan. The best of some rounds each, in turn: other load of the machine disturbs some more than others.
 */
export async function underLoad(
  app: TestApp,
  env: Record<string, string>,
  { project, questions }: { project: string; questions: readonly string[] },
): Promise<Row[]> {
  const keyWith = async (policies: object[]) => {
    const ids = await Promise.all(
      policies.map(async document => (await app.admin.post('/policies', { document })).body.id),
    )
    const { body } = await app.admin.post('/project-keys', { project_id: project, policy_ids: ids })
    return body.secret as string
  }
  const half = {
    effect: 'Allow',
    action: ['knowledge:SearchKnowledge'],
    resource: [1, 2, 3, 4, 5].map(digit => `srn:${project}:document:/${digit}*`),
  }
  const tokens = { whole: await keyWith([]), half: await keyWith([{ statement: [half] }]) }
  const db = new pg.Client(app.databaseUrl)
  await db.connect()
  const postgres = await postmaster(db)
  await db.end()
  const web = await start('src/web.ts', { ...env, LOG_LEVEL: 'info' })
  web.child.stdout?.resume()
  let asked = 0
  const searches = async (token: string, ms: number) => {
    const by = client(web.url, token)
    const started = performance.now()
    let answered = 0
    const caller = async () => {
      while (performance.now() - started < ms) {
        // Never the same twice, so that no embedding is remembered.
        const query = `${questions[asked % questions.length]} ${asked++}`
        const { status, body } = await by.post('/knowledge/search', { query })
        if (status !== 200 || body.results.length !== 10 || body.degraded_channels.length > 0)
          throw new Error(`search answered ${status}: ${JSON.stringify(body).slice(0, 500)}`)
        answered++
      }
    }
    await Promise.all(Array.from({ length: CALLERS }, caller))
    return { answered, seconds: (performance.now() - started) / 1000 }
  }
  const measured = async (token: string) => {
    const used = () => [processorTime(web.child.pid as number), processorTime(postgres, { children: true })]
    const before = used()
    const { answered, seconds } = await searches(token, ROUND_MS)
    const after = used()
    return {
      rate: answered / seconds,
      web: (after[0] - before[0]) / answered,
      database: (after[1] - before[1]) / answered,
    }
  }
  try {
    for (const token of [tokens.whole, tokens.half, tokens.whole]) await searches(token, WARM_MS)
    type Round = Awaited<ReturnType<typeof measured>>
    const rounds: { whole: Round[]; half: Round[] } = { whole: [], half: [] }
    for (let round = 0; round < ROUNDS; round++) {
      rounds.whole.push(await measured(tokens.whole))
      rounds.half.push(await measured(tokens.half))
    }
    const rowsOf = (of: readonly Round[], what: string, targets: { rate?: string; web?: string }): Row[] => {
      const best = (value: (round: Round) => number, pick = Math.min) => pick(...of.map(value))
      return [
        {
          what: `searches a second over 10,000 chunks, ${CALLERS} callers${what}`,
          value: Math.round(best(({ rate }) => rate, Math.max)),
          unit: '/s',
          target: targets.rate,
        },
        {
          what: `processor time of web a search${what}`,
          value: Number(best(round => round.web).toFixed(1)),
          unit: 'ms',
          target: targets.web,
          note: `of PostgreSQL ${best(({ database }) => database).toFixed(1)} ms`,
        },
      ]
    }
    return [
      ...rowsOf(rounds.whole, '', { rate: '>= 150', web: '<= 5' }),
      ...rowsOf(rounds.half, ', by a key that may see a part', {}),
    ]
  } finally {
    web.child.kill('SIGTERM')
  }
}

const BITS = codeBits(1024)

/** How long comparing the codes of a project holds the event loop at most, and how long it takes. */
export async function loopHolds(): Promise<Row[]> {
  const rows: Row[] = []
  for (const count of [10_000, 100_000, 1_000_000]) {
    const bytes = BITS / 8
    const codes: CachedCodes = {
      scope: { project: '', space: { id: 0, dimensions: 1024 }, source: 1 },
      snapshot: '',
      server: '',
      ids: new Float64Array(count).fill(1),
      codes: randomFillSync(new Uint8Array(count * bytes)),
      bytes,
      rows: count,
      hides: false,
    }
    const question = codes.codes.slice(0, bytes)
    let [held, took] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]
    for (let time = 0; time < 10; time++) {
      const delay = monitorEventLoopDelay({ resolution: 1 })
      delay.enable()
      await sleep(10)
      delay.reset()
      const started = performance.now()
      await nearestCodes(codes, question, 2000)
      took = Math.min(took, performance.now() - started)
      await sleep(2)
      held = Math.min(held, delay.max / 1e6)
      delay.disable()
    }
    rows.push({
      what: `event loop held by comparing ${count.toLocaleString('en')} codes`,
      value: Number(held.toFixed(1)),
      unit: 'ms',
      target: '<= 10',
      note: `${took.toFixed(1)} ms in all`,
    })
  }
  return rows
}
