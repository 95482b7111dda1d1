import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { turnQueue } from '#execution/generations/request/create.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { json, startTarget, type TargetRequest } from './tool-target.ts'

/** Tables of a turn, with the column of its ID. A restore updates the first two and replaces the rows of the others. */
const TABLES = {
  generations: 'id',
  traces: 'id',
  generation_steps: 'generation_id',
  generation_journal: 'generation_id',
  generation_journal_unlogged: 'generation_id',
  generation_work: 'generation_id',
  generation_work_unlogged: 'generation_id',
}
type Table = keyof typeof TABLES
type Snapshot = Record<Table, any[]>

/** Two calls of each tool, and an answer. A call of `once` is not idempotent. */
const CALLS = [
  ['once', 'again', 'slow'],
  ['slow', 'once', 'again'],
]
const SCRIPT = [
  ...CALLS.map((names, index) => ({ tool_calls: names.map(name => ({ name, args: { n: index + 1 } })) })),
  { text: 'done' },
]
const DELAYS: Record<string, number> = { again: 0, once: 60, slow: 120 }

describe('a turn resumed from each state that its worker has written', function () {
  this.timeout(120_000)
  let app: AgentApp
  const target = forSuite(startTarget)

  const query = async (text: string, values: unknown[] = []): Promise<any[]> =>
    (await app.pool.query(rawQuery(text, values))).rows as any[]

  before(async () => {
    // The outcomes of a step arrive one after the other.
    target.answer = (request, response) => {
      const { n } = JSON.parse(request.body)
      setTimeout(() => json({ n })(request, response), DELAYS[request.url.slice(1)])
    }
    app = await startAgentApp({
      workers: ['generation'],
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', PROVIDER_MAX_RETRIES: '0' },
      actions: ['agents:CreateAgentGeneration', 'generations:*', 'traces:*'],
    })
    const rows = Object.entries(TABLES).map(([table, column]) => {
      const id = table === 'traces' ? 't.id = new.trace_id' : `t.${column} = new.id`
      return `'${table}', (select coalesce(jsonb_agg(to_jsonb(t)), '[]') from ${table} t where ${id})`
    })
    await query('create table snapshots (seq bigint generated always as identity, generation_id text, state jsonb)')
    await query(`
      create function take_snapshot() returns trigger language plpgsql as $$ begin
        insert into snapshots (generation_id, state) select new.id, jsonb_build_object(${rows.join(', ')});
        return null;
      end $$`)
    await query(
      'create trigger snapshot after insert or update on generations for each row execute function take_snapshot()',
    )
  })
  after(async () => {
    await app.close()
  })

  const modelCalls = async (): Promise<number> => {
    const response = await fetch(`${app.double.url}/control/requests?kind=chat`)
    return ((await response.json()) as any).data.length
  }

  /** Waits until a turn has settled and its steps have moved to the trace file. */
  const settled = (id: string) =>
    eventually(
      async () => {
        const { body } = await app.key.get(`/generations/${id}`)
        const [{ count }] = await query(
          'select count(*)::int as count from generation_steps where generation_id = $1',
          [id],
        )
        return ['completed', 'failed'].includes(body.status) && count === 0 ? body : null
      },
      { what: `end of ${id}` },
    )

  async function restore(id: string, snapshot: Snapshot): Promise<void> {
    const [{ file_id }] = await query('select file_id from traces where id = $1', [snapshot.traces[0].id])
    for (const [table, column] of Object.entries(TABLES).slice(2)) {
      await query(`delete from ${table} where ${column} = $1`, [id])
      const rows = JSON.stringify(snapshot[table as Table])
      await query(`insert into ${table} select * from jsonb_populate_recordset(null::${table}, $1::jsonb)`, [rows])
    }
    for (const table of ['generations', 'traces'] as const) {
      const [row] = snapshot[table]
      const columns = Object.keys(row).filter(name => !['id', 'project_id', 'created_at'].includes(name))
      const values = `select ${columns} from jsonb_populate_record(null::${table}, $1::jsonb)`
      await query(`update ${table} set (${columns}) = (${values}) where id = $2`, [JSON.stringify(row), row.id])
    }
    await query('delete from files where id = $1', [file_id])
  }

  for (const mode of ['full', 'none'])
    it(`repeats no call with an outcome and none that must not be, in content mode ${mode}`, async () => {
      const agent = await app.agent({
        trace_content_mode: mode,
        tool_bindings: Object.keys(DELAYS).map(name => ({
          tool: { name, execute: { url: `${target.url}/${name}` }, idempotent: name !== 'once' },
        })),
      })
      target.requests.length = 0
      const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: `@double ${JSON.stringify(SCRIPT)}` })
      const id = body.generation_id as string
      assert.equal((await settled(id)).status, 'completed')
      const keyOf = ({ url, headers, body }: TargetRequest) => [url, body, headers['idempotency-key']].join(' ')
      const keys = new Set(target.requests.map(keyOf))
      assert.equal(keys.size, 6)

      const taken = await query('select state from snapshots where generation_id = $1 order by seq', [id])
      const snapshots = (taken.map(({ state }) => state) as Snapshot[]).filter(
        ({ generations }) => generations[0].status === 'in_progress',
      )
      assert.ok(snapshots.length >= 9, `${snapshots.length} states`)
      for (const [index, snapshot] of snapshots.entries()) {
        const state = `state ${index} of ${snapshots.length}`
        const [{ step_count }] = snapshot.generations
        const journal = [...snapshot.generation_journal, ...snapshot.generation_journal_unlogged]
        const rowOf = (n: number, position: number) => journal.find(row => row.n === n && row.position === position)
        const answered = step_count + (rowOf(step_count + 1, 0) ? 1 : 0)
        const calls = CALLS.map((names, step) =>
          names.map((name, call) => {
            const row = rowOf(step + 1, call + 1)
            const known = step < step_count || row?.body
            const unknown = !known && row !== undefined && name === 'once'
            return { url: `/${name}`, made: !known && !unknown, result: unknown ? 'outcome_unknown' : step + 1 }
          }),
        )

        target.requests.length = 0
        const before = await modelCalls()
        await restore(id, snapshot)
        await app.services.write(async tx => tx.send(turnQueue, { generation_id: id, project_id: app.projectId }))
        const record = await settled(id)
        assert.deepEqual([record.status, record.step_count], ['completed', 3], state)
        assert.equal((await modelCalls()) - before, SCRIPT.length - answered, state)
        const made = calls.flat().filter(call => call.made)
        assert.deepEqual(target.requests.map(({ url }) => url).sort(), made.map(({ url }) => url).sort(), state)
        for (const request of target.requests)
          if (JSON.parse(request.body).n <= answered) assert.ok(keys.has(keyOf(request)), state)
        for (const table of ['generation_journal', 'generation_journal_unlogged'])
          assert.deepEqual(await query(`select from ${table} where generation_id = $1`, [id]), [], state)
        if (mode === 'none') continue
        assert.equal(record.output.content, 'done', state)
        const { steps } = (await app.key.get(`/generations/${id}/transcript`)).body
        const resultOf = ({ result, error }: any) => result?.n ?? error.meta.reason
        assert.deepEqual(
          steps.slice(0, 2).map((step: any) => step.tool_results.map(resultOf)),
          calls.map(each => each.map(({ result }) => result)),
          state,
        )
      }
    })
})
