import { recordActivityLater } from '#control/activity/record.ts'
import { rawQuery } from '#core/db/sql.ts'
import { eventually, startApp } from '../support/app.ts'
import { percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/** Entries of one project next to as many of another; every thousandth is critical, every tenth of a second kind. */
const ROWS = Number(process.env.ACTIVITY_ROWS ?? 1_000_000)
const SLICE = 50_000
const REQUESTS = 200
const RECORDED = 20_000
const TARGET_MS = 10

const fill = (project: string, name: string, from: number, to: number): string => `
  insert into activity_entries (id, project_id, kind, severity, summary, detail, agent_id, generation_id, ref_id, created_at)
  select 'acte_' || lpad('${name}' || n, 26, '0'), '${project}',
    case when n % 10 = 0 then 'approval_created' else 'action_executed' end,
    case when n % 1000 = 0 then 'critical' else 'info' end, 'The tool look up was called',
    '{"tool_id":"tool_01","tool_name":"look up","action":"look_up"}', 'agent_' || n % 100, 'gen_' || n / 5, 'tool_01',
    now() - (${ROWS} - n) * interval '1 second'
  from generate_series(${from}, ${to}) n`

/** Pages of the activity feed over HTTP, and what recording costs the work that it is about. */
export async function run(): Promise<Row[]> {
  const app = await startApp()
  const [project, other] = [await app.project(), await app.project()]
  const query = (text: string) => app.services.pool.query(rawQuery(text))
  for (const [{ id }, name] of [
    [project, '1'],
    [other, '2'],
  ] as const)
    for (let from = 1; from <= ROWS; from += SLICE) await query(fill(id, name, from, Math.min(from + SLICE - 1, ROWS)))
  await query('analyze activity_entries')

  const timed = async (path: (n: number) => string): Promise<number> => {
    const times: number[] = []
    for (let n = 0; n < REQUESTS; n++) {
      const at = path(n)
      const start = performance.now()
      const { status } = await project.key.get(at)
      times.push(performance.now() - start)
      if (status !== 200) throw new Error(`${at} answered ${status}`)
    }
    return percentile(times, 0.5)
  }
  const cursor = (n: number) => {
    const row = Math.floor(ROWS * (0.05 + (0.9 * n) / REQUESTS))
    const time = new Date(Date.now() - (ROWS - row) * 1000).toISOString()
    return Buffer.from(`${time}|acte_${String(row).padStart(26, '0')}`).toString('base64url')
  }
  const rows: Row[] = []
  const add = (what: string, value: number, unit: string, more: Partial<Row> = {}) =>
    rows.push({ what, value: rounded(value, 2), unit, ...more })
  const page = async (what: string, path: (n: number) => string) =>
    add(what, await timed(path), 'ms', { target: `< ${TARGET_MS}`, note: `median of ${REQUESTS}, over HTTP` })

  await page('read of one record, for comparison', () => `/projects/${project.id}`)
  await page('newest page', () => '/activity')
  await page('page behind a cursor', n => `/activity?cursor=${cursor(n)}`)
  await page('newest page of two kinds', () => '/activity?kind=approval_created&kind=share_revoked')
  await page('newest page of what is critical', () => '/activity?severity=critical')
  await page('page of an agent behind a cursor', n => `/activity?agent_id=agent_${n % 100}&cursor=${cursor(n)}`)
  await page('entries of a turn', n => `/activity?generation_id=gen_${n * 7}`)
  await page('a kind that never came', () => '/activity?kind=share_revoked')

  const exporting = performance.now()
  const response = await fetch(`${app.url}/api/v1/activity/export?project_id=${project.id}`, {
    headers: { authorization: `Bearer ${project.key.token}` },
  })
  let lines = 0
  for await (const chunk of response.body as ReadableStream<Uint8Array>)
    for (const byte of chunk) if (byte === 10) lines++
  if (lines !== ROWS) throw new Error(`${lines} lines were exported`)
  add('export', ROWS / ((performance.now() - exporting) / 1000), 'entries/s')

  const entry = { project_id: other.id, kind: 'action_executed', summary: 'The tool look up was called' } as const
  const writing = performance.now()
  let taken = 0
  for (let n = 0; n < RECORDED; n += 100) {
    const start = performance.now()
    for (let i = 0; i < 100; i++) recordActivityLater(app.services, { ...entry, detail: { tool_id: 'tool_01', n } })
    taken += performance.now() - start
    await new Promise(resolve => setTimeout(resolve, 2))
  }
  const stored = async () =>
    (await app.services.pool.oneFirst(
      rawQuery('select count(*)::int from activity_entries where project_id = $1', [other.id]),
    )) as number
  await eventually(async () => (await stored()) === ROWS + RECORDED, { within: 120_000, every: 500 })
  add('what recording takes of the work', (taken / RECORDED) * 1000, 'µs')
  add('recorded and stored', RECORDED / ((performance.now() - writing) / 1000), 'entries/s')
  await app.close()
  return rows
}
