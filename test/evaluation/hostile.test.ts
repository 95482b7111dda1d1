import assert from 'node:assert/strict'
import { mkdtemp, readdir, readlink, rm } from 'node:fs/promises'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { Readable } from 'node:stream'
import { countStatement, idStatement, voidStatement } from '#core/db/sql.ts'
import { readLines } from '#evaluation/datasets/item-files.ts'
import { listItemsAfter } from '#evaluation/datasets/store.ts'
import { listOutcomes, listUnsettledRuns } from '#evaluation/eval-runs/store.ts'
import { eventually } from '../support/app.ts'
import { longestTurn } from '../support/event-loop.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { EVAL_ACTIONS, type EvalApp, ended, heldItems, item, made, refused, startEvalApp } from './support.ts'

const EXACT = [{ type: 'exact_match' }]
const MiB = 1024 * 1024

describe('a hostile project that evaluates', () => {
  let app: EvalApp
  before(async () => {
    app = await startEvalApp({
      env: { EVAL_WORKER_INTERVAL_MS: '500', EVAL_RUN_ABANDONED_AFTER_MS: '1000' },
      actions: [...EVAL_ACTIONS, 'sessions:*'],
    })
  })
  after(() => app?.close())

  const judge = (lane: string, prompt = 'x') => ({
    type: 'llm_judge',
    prompt,
    pass_threshold: 0.5,
    ai_provider_id: app.providerId,
    model: `${lane}/m`,
  })
  const waiting = (gate: string) =>
    eventually(async () => ((await app.lanes.gate(gate))?.waiting ? true : null), { what: `a call at ${gate}` })
  const open = (gate: string) => app.lanes.read('POST', `/control/gates/${gate}/open`)

  it('never calls a judge with one value thousands of times', async () => {
    const agent_id = await app.echo('many')
    await app.lanes.put('many-judge', { rules: [{ reply: { text: '{"score": 1}' } }] })
    const dataset_id = await app.dataset([item('x'.repeat(MiB), 'y'.repeat(MiB))])
    const scorers = [judge('many-judge', '{{expected}}{{input}}'.repeat(3000))]
    const run = await app.run((await app.eval({ agent_id, dataset_id, scorers })).id)
    const [{ error }] = await app.results(run)
    assert.deepEqual([run.status, error.code, error.meta.scorer], ['completed', 'EVAL_SCORING_FAILED', 'llm_judge'])
    assert.match(error.message, /at most 8388608/)
    assert.equal((await app.lanes.requests('many-judge')).length, 0)
    // A judge receives an item and an answer whole.
    const plain = await app.eval({ agent_id, dataset_id, scorers: [judge('many-judge', '{{expected}}{{input}}')] })
    assert.equal((await app.run(plain.id)).completed_count, 1)
  })

  it('gets no answer back that was purged while it was judged', async () => {
    const agent_id = await app.echo('purged', [{ reply: { text: 'my secret' } }])
    await app.lanes.put('slow-judge', { rules: [{ reply: { text: '{"score": 1}', gate: 'slow-judge' } }] })
    const dataset_id = await app.dataset([item('Say it', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: [judge('slow-judge')] })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    await waiting('slow-judge')
    const { data } = (await app.key.get(`/generations?agent_id=${agent_id}`)).body
    assert.equal((await app.key.delete(`/generations/${data[0].id}/content`)).status, 200)
    await open('slow-judge')
    assert.equal((await ended(app.key, run)).completed_count, 1)
    const [result] = await app.results(run)
    assert.deepEqual([result.output, result.passed], [null, true])
  })

  it('keeps nothing that a judge quotes of an answer that is not kept', async () => {
    const agent_id = await app.echo('unkept', [{ reply: { text: 'my secret' } }], { trace_content_mode: 'none' })
    const text = '{"score": 1, "reasoning": "It says: my secret"}'
    await app.lanes.put('quoting', { rules: [{ reply: { text } }] })
    const dataset_id = await app.dataset([item('Say it', 'Yes')])
    const run = await app.run((await app.eval({ agent_id, dataset_id, scorers: [judge('quoting')] })).id)
    const [{ output, scores }] = await app.results(run)
    assert.deepEqual([output, scores], [null, [{ scorer: 'llm_judge', score: 1, passed: true }]])
  })

  it('has answers that are not kept dropped once they are scored', async () => {
    const gate = 'left'
    const agent_id = await app.echo(gate, [{ reply: { text: 'my secret' } }], { trace_content_mode: 'none' })
    await app.lanes.put('left-judge', { rules: [{ reply: { text: '{"score": 1}', gate } }] })
    const dataset_id = await app.dataset([item('Say it', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: [judge('left-judge')] })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    await waiting(gate)
    const left = (): Promise<number> =>
      app.pool.oneFirst(countStatement`
        select count(*) as count from eval_answers_unlogged u join eval_results r on r.id = u.result_id
        where r.eval_run_id = ${run.id}`)
    assert.equal(await left(), 1)
    await open(gate)
    assert.equal((await ended(app.key, run)).status, 'completed')
    assert.equal(await left(), 0)
  })

  it('calls no judge while it is paused', async () => {
    const agent_id = await app.echo('halted', [{ reply: { text: 'Yes', gate: 'halted' } }])
    await app.lanes.put('halted-judge', { rules: [{ reply: { text: '{"score": 1}' } }] })
    const dataset_id = await app.dataset([item('x', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: [judge('halted-judge')] })
    const run = await made(app.key, `/evals/${id}/runs`, {})
    await waiting('halted')
    assert.equal((await app.key.post(`/projects/${app.projectId}/pause`, {})).status, 200)
    await open('halted')
    const { data } = (await app.key.get(`/generations?agent_id=${agent_id}`)).body
    await eventually(
      async () => ((await app.key.get(`/generations/${data[0].id}`)).body.status === 'completed' ? true : null),
      { what: 'the end of the turn' },
    )
    await eventually(async () => ((await heldItems(app, run)) === 1 ? true : null), { what: 'the item to be held' })
    assert.equal((await app.lanes.requests('halted-judge')).length, 0)
    assert.equal((await app.key.post(`/projects/${app.projectId}/resume`, {})).status, 200)
    assert.equal((await ended(app.key, run)).completed_count, 1)
  })

  it('reads no dataset through an eval that it may not read', async () => {
    const agent_id = await app.echo('reader')
    const mine = await app.dataset([item('mine')])
    const secret = await app.dataset([item('the secret')])
    const allow = (action: string[], resource: string[]) => ({ effect: 'Allow', action, resource })
    const user = await app.user(undefined, [
      {
        statement: [
          allow(['evaluations:*'], [`srn:${app.projectId}:eval:*`, `srn:${app.projectId}:dataset:${mine}`]),
          allow(['agents:CreateAgentGeneration'], [`srn:${app.projectId}:agent:*`]),
        ],
      },
    ])
    const body = { project_id: app.projectId, agent_id, scorers: EXACT }
    refused(await user.post('/evals', { ...body, name: 'spy', dataset_id: secret }), 403, 'FORBIDDEN')
    const own = await made(user, '/evals', { ...body, name: 'own', dataset_id: mine })
    refused(await user.patch(`/evals/${own.id}`, { dataset_id: secret }), 403, 'FORBIDDEN')
    assert.equal((await user.patch(`/evals/${own.id}`, { group_by: 'kind' })).status, 200)
    // Neither may it have an eval of others show hidden values: values that scorers see and metadata that groups show.
    const theirs = await app.eval({ agent_id, dataset_id: secret, scorers: EXACT })
    refused(await user.patch(`/evals/${theirs.id}`, { group_by: 'kind' }), 403, 'FORBIDDEN')
    refused(await user.patch(`/evals/${theirs.id}`, { scorers: [{ type: 'contains', value: 'x' }] }), 403, 'FORBIDDEN')
    assert.equal((await user.patch(`/evals/${theirs.id}`, { name: 'renamed' })).status, 200)
  })

  describe('with a file', () => {
    const send = (id: string, body: string, type: string) =>
      app.key.post(`/datasets/${id}/items/import-file`, body, { 'content-type': type })
    const CSV = 'text/csv'
    const JSONL = 'application/x-ndjson'

    it('is refused rows of a million cells at the cell that is too many', async () => {
      const id = await app.dataset([])
      const header = await send(id, `input${','.repeat(MiB)}\n`, CSV)
      refused(header, 400, 'VALIDATION_FAILED', 'lines[1]')
      const row = await send(id, `input\nx\n${'a,'.repeat(MiB)}\n`, CSV)
      refused(row, 400, 'VALIDATION_FAILED', 'lines[3]')
      assert.match(row.body.error.meta.problems[0].message, /more than 100 cells/)
      const wide = await send(id, `input\n${`${'x'.repeat(MiB)},`.repeat(20)}\n`, CSV)
      refused(wide, 400, 'VALIDATION_FAILED', 'lines[2]')
      assert.match(wide.body.error.meta.problems[0].message, /is too long/)
    })

    it('holds the process up with no rows, however many they are or large', async () => {
      const id = await app.dataset([])
      const quotes = `"${'""'.repeat(5 * MiB)}"`
      const files: [string, string, string][] = [
        ['\n'.repeat(2 * MiB), JSONL, 'LIMIT_REACHED'],
        [' \r\n'.repeat(MiB), JSONL, 'LIMIT_REACHED'],
        [`input\n${'\n'.repeat(2 * MiB)}`, CSV, 'LIMIT_REACHED'],
        [`input\n${'""\n'.repeat(MiB)}`, CSV, 'LIMIT_REACHED'],
        [`input\n"${'""'.repeat(7 * MiB)}"\n`, CSV, 'TOO_BIG'],
        [`input,expected_output,metadata\n${quotes},${quotes},${quotes}\n`, CSV, 'MALFORMED'],
        [`input\n"${'\r\n'.repeat(7 * MiB)}"\n`, CSV, 'TOO_BIG'],
      ]
      for (const [file, type, code] of files) {
        let reply: any
        const held = await longestTurn(async () => {
          reply = await send(id, file, type)
        })
        refused(reply, 400, 'VALIDATION_FAILED')
        assert.equal(reply.body.error.meta.problems[0].code, code)
        assert.ok(held < 1000, `${held} ms for ${file.slice(0, 50)}`)
      }
    })

    it('receives the number of the line that is no UTF-8, and writes no item of it', async () => {
      const id = await app.dataset([])
      const latin = (text: string) => Buffer.from(text, 'latin1') as unknown as string
      const post = async (body: string, type: string) => {
        const reply = await fetch(`${app.url}/api/v1/datasets/${id}/items/import-file`, {
          method: 'POST',
          headers: { authorization: `Bearer ${app.key.token}`, 'content-type': type },
          body: latin(body),
        })
        return { status: reply.status, body: (await reply.json()) as any }
      }
      refused(await post('input\nPlain\nGr\u00f6\u00dfe\nPlain\n', CSV), 400, 'VALIDATION_FAILED', 'lines[3]')
      const line = JSON.stringify(item('Gr\u00f6\u00dfe'))
      refused(await post(`${JSON.stringify(item('a'))}\n${line}\n`, JSONL), 400, 'VALIDATION_FAILED', 'lines[2]')
      assert.equal((await app.key.get(`/datasets/${id}/items`)).body.total, 0)
      assert.equal((await send(id, 'input\nGröße\n', CSV)).status, 201)
    })

    it('costs no more in small pieces than in large ones', async function () {
      // 0.2 s; two minutes where each piece has all that came before it read again.
      this.timeout(60_000)
      const text = 'x'.repeat(2 * MiB)
      const pieces = function* () {
        for (let from = 0; from < text.length; from += 8) yield Buffer.from(text.slice(from, from + 8))
        yield Buffer.from('\nnext')
      }
      const lines: number[] = []
      for await (const line of readLines(Readable.from(pieces()), 4 * MiB)) lines.push(line.length)
      assert.deepEqual(lines, [2 * MiB, 4])
    })

    it('leaves nothing on the disk by which a lost process would be remembered', async () => {
      const id = await app.dataset([])
      const before = process.env.TMPDIR
      const own = await mkdtemp(path.join(tmpdir(), 'muster-test-'))
      process.env.TMPDIR = own
      try {
        const socket = connect(Number(new URL(app.url).port), '127.0.0.1')
        const target = `POST /api/v1/datasets/${id}/items/import-file HTTP/1.1`
        socket.write(`${target}\r\nHost: x\r\nAuthorization: Bearer ${app.key.token}\r\nContent-Type: ${CSV}\r\n`)
        socket.write(`Content-Length: 1000000\r\n\r\ninput\n${'some text\n'.repeat(9000)}`)
        const open = async () => (await readdir('/proc/self/fd')).map(fd => `/proc/self/fd/${fd}`)
        const spools = async () => {
          const links = await Promise.all((await open()).map(fd => readlink(fd).catch(() => '')))
          return links.filter(link => link.startsWith(own)).length
        }
        if (process.platform === 'linux')
          await eventually(async () => ((await spools()) === 1 ? true : null), { what: 'the file' })
        await eventually(async () => ((await readdir(own)).length === 0 ? true : null), { what: 'an empty directory' })
        socket.destroy()
        if (process.platform === 'linux')
          await eventually(async () => ((await spools()) === 0 ? true : null), { what: 'the end of the file' })
      } finally {
        if (before === undefined) delete process.env.TMPDIR
        else process.env.TMPDIR = before
        await rm(own, { recursive: true })
      }
      assert.equal((await app.key.get(`/datasets/${id}/items`)).body.total, 0)
    })
  })

  it('gets items and results of 4 MiB in pages that fit into memory', async () => {
    const agent_id = await app.echo('large')
    const dataset_id = await app.dataset([])
    const lines = Array.from({ length: 6 }, (_, at) => JSON.stringify(item(`${at}${'x'.repeat(3.9 * MiB)}`, 'Yes')))
    const sent = await app.key.post(`/datasets/${dataset_id}/items/import-file`, `${lines.join('\n')}\n`, {
      'content-type': 'application/x-ndjson',
    })
    assert.deepEqual([sent.status, sent.body.created], [201, 6], JSON.stringify(sent.body))
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    const run = await app.run(id)
    assert.equal(run.completed_count, 6, JSON.stringify(run))
    const lists = [
      `/datasets/${dataset_id}/items`,
      `/evals/${id}/runs/${run.id}/results`,
      `/evals/${id}/compare?runs=${run.id}`,
    ]
    for (const list of lists) {
      const page = async (offset: number) => {
        const { body } = await app.key.get(`${list}${list.includes('?') ? '&' : '?'}limit=50&offset=${offset}`)
        return [body.total, body.limit, body.data.length]
      }
      assert.deepEqual(await page(0), [6, 5, 5], list)
      assert.deepEqual(await page(5), [6, 50, 1], list)
    }
    const first = await listItemsAfter(app.pool, dataset_id, null, 200)
    assert.equal(first.length, 5)
    assert.equal((await listItemsAfter(app.pool, dataset_id, first[4], 200)).length, 1)
    const file = (await app.key.get(`/datasets/${dataset_id}/items/export`)).body
    assert.deepEqual(
      file.split('\n').map((line: string) => line && JSON.parse(line).input[0].content[0]),
      ['0', '1', '2', '3', '4', '5', ''],
    )
  })

  it('has its figures made without what scorers wrote, and no labels that are texts', async () => {
    const agent_id = await app.echo('figures')
    await app.lanes.put('figures-judge', {
      rules: [{ reply: { text: JSON.stringify({ score: 0.25, reasoning: 'because '.repeat(2000) }) } }],
    })
    const kinds = ['short', 'x'.repeat(255), 'x'.repeat(256), 7]
    const dataset_id = await app.dataset(kinds.map(kind => item('x', 'Yes', { kind })))
    const scorers = [...EXACT, judge('figures-judge')]
    const run = await app.run((await app.eval({ agent_id, dataset_id, scorers, group_by: 'kind' })).id)
    const { grouping } = run.aggregate_scores
    assert.deepEqual(Object.keys(grouping.groups).sort(), ['short', 'x'.repeat(255)])
    assert.equal(grouping.ungrouped_item_count, 2)
    const [{ scores }] = await listOutcomes(app.pool, run.id, null)
    assert.deepEqual(scores, [
      { scorer: 'exact_match', score: 1, passed: true },
      { scorer: 'llm_judge', score: 0.25, passed: false },
    ])
  })

  it('gets figures of runs in pages that fit into memory', async () => {
    const dataset_id = await app.dataset([item('x', 'Yes')])
    const { id } = await app.eval({ agent_id: await app.echo('figured'), dataset_id, scorers: EXACT })
    for (let at = 0; at < 3; at++) await app.run(id)
    await app.pool.query(voidStatement`
      update eval_runs set aggregate_scores = json_build_object('x', repeat('x', 9000000)) where eval_id = ${id}`)
    const { body } = await app.key.get(`/evals/${id}/runs`)
    assert.deepEqual([body.total, body.limit, body.data.length], [3, 2, 2])
    assert.equal((await app.key.get(`/evals/${id}/runs?offset=2`)).body.data.length, 1)
  })

  it('has runs that wait for their turn, and another one whose end was lost is found all the same', async () => {
    const agent_id = await app.echo('lost')
    const dataset_id = await app.dataset([item('x', 'Yes')])
    const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
    await app.lanes.put('queueing', { rules: [{ reply: { text: 'Yes', gate: 'queueing' } }] })
    const waits = await app.eval({ agent_id: await app.agent({ model: 'queueing/m' }), dataset_id, scorers: EXACT })
    const waiter = await made(app.key, `/evals/${waits.id}/runs`, {})
    await waiting('queueing')
    const lost = await app.run(id)
    const { pool } = app
    await pool.query(
      voidStatement`update eval_runs set active_at = now() - interval '1 minute' where id = ${waiter.id}`,
    )
    await pool.query(voidStatement`
      update eval_runs set status = 'running', active_at = now() - interval '20 seconds' where id = ${lost.id}`)
    const found = await listUnsettledRuns(pool, { silentMs: 5000, limit: 1 })
    assert.deepEqual(
      found.map(({ id }) => id),
      [lost.id],
    )
    assert.equal((await ended(app.key, lost)).status, 'completed')
    await open('queueing')
    assert.equal((await ended(app.key, waiter)).status, 'completed')
  })

  it('copies no conversation that an item cannot hold', async () => {
    const { key } = app
    const agent_id = await app.echo('long-talk')
    const session = await made(key, '/sessions', { agent_id })
    for (let at = 0; at < 17; at++) {
      const sent = await key.post(`/sessions/${session.id}/messages`, { message: 'x'.repeat(262_144) })
      assert.ok(sent.status < 300, JSON.stringify(sent.body))
      if (at > 0 && at < 16) continue
      const ran = await key.post(`/sessions/${session.id}/generate?wait=true`, {})
      assert.ok(ran.status < 300, JSON.stringify(ran.body))
    }
    const path = `/datasets/${await app.dataset([])}/items`
    for (const replies of ['last', 'all']) {
      const reply = await key.post(`${path}/from-session`, { session_id: session.id, replies })
      refused(reply, 400, 'VALIDATION_FAILED', 'session_id')
      assert.match(reply.body.error.meta.problems[0].message, /more than 500 messages or 4 MiB/)
    }
  })

  it('whose run cannot be settled is notified once; runs that it keeps from ending otherwise are not', async function () {
    this.timeout(90_000)
    const { pool } = app
    const dataset_id = await app.dataset([item('x', 'Yes')])
    const agent_id = await app.echo('unsettled')
    const [broken, sound] = [
      await app.eval({ agent_id, dataset_id, scorers: EXACT, pass_threshold: 1 }),
      await app.eval({ agent_id, dataset_id, scorers: EXACT, pass_threshold: 1 }),
    ]
    const completes = `new.status = 'completed' and new.eval_id = '${broken.id}'`
    await refusingUpdates(app.servicesOf(app.projectId), 'eval_runs', completes, async () => {
      const run = await made(app.key, `/evals/${broken.id}/runs`, {})
      // Items that wait for a retry are left out.
      const hurried = setInterval(
        () =>
          void pool
            .query(voidStatement`
          update pgboss.job set start_after = now() where name = 'eval.complete_run' and state = 'retry'`)
            .catch(() => {}),
        200,
      )
      try {
        assert.equal((await app.run(sound.id)).status, 'completed')
        const failed = await eventually(
          async () => {
            const { body } = await app.key.get(`/evals/${broken.id}/runs/${run.id}`)
            return body.status === 'failed' ? body : null
          },
          { what: 'the end of the run', within: 80_000 },
        )
        assert.deepEqual(
          [failed.error.code, failed.passed, failed.aggregate_scores, failed.completed_count],
          ['INTERNAL_ERROR', null, null, 1],
        )
        const events = (await app.key.get(`/events?resource_id=${run.id}`)).body.data
        assert.deepEqual(
          events.map(({ event }: { event: string }) => event),
          ['eval_runs.failed'],
        )
      } finally {
        clearInterval(hurried)
      }
    })
  })

  it('has a run that the sweep cannot end, and runs of others are ended', async () => {
    const { pool } = app
    const gate = 'unswept'
    const agent_id = await app.echo(gate, [{ reply: { text: 'Yes', gate } }])
    const dataset_id = await app.dataset([item('x', 'Yes')])
    const started = async () => {
      const { id } = await app.eval({ agent_id, dataset_id, scorers: EXACT })
      const run = await made(app.key, `/evals/${id}/runs`, {})
      await eventually(async () => ((await asked(run)) ? true : null), { what: 'a turn' })
      return run
    }
    const asked = (run: { id: string }): Promise<string | null> =>
      pool.maybeOneFirst(idStatement`
        select generation_id as id from eval_results where eval_run_id = ${run.id} and state = 'asked'`)
    const runs = [await started(), await started()]
    await refusingUpdates(
      app.servicesOf(app.projectId),
      'eval_results',
      `new.eval_run_id = '${runs[0].id}'`,
      async () => {
        for (const run of runs) await pool.query(voidStatement`delete from generations where id = ${await asked(run)}`)
        assert.equal((await ended(app.key, runs[1])).errored_count, 1)
        assert.equal((await app.key.get(`/evals/${runs[0].eval_id}/runs/${runs[0].id}`)).body.status, 'running')
      },
    ).finally(() => open(gate))
    assert.equal((await ended(app.key, runs[0])).errored_count, 1)
  })

  it('receives 404 for versions beyond all numbers', async () => {
    const agent_id = await app.echo('versions')
    const { id } = await app.eval({ agent_id, dataset_id: await app.dataset([item('x')]), scorers: EXACT })
    for (const version of [2 ** 31, Number.MAX_SAFE_INTEGER]) {
      const run = await app.key.post(`/evals/${id}/runs`, { agent_version: version })
      refused(run, 400, 'VALIDATION_FAILED', 'agent_version')
      const release = { stable_version: 1, canary_version: version, canary_percent: 10 }
      refused(await app.key.put(`/agents/${agent_id}/release`, release), 400, 'VALIDATION_FAILED', 'canary_version')
    }
  })

  it('keeps no more of scorers than each item can read', async () => {
    const body = { name: 'much', agent_id: await app.echo('much'), dataset_id: await app.dataset([item('x')]) }
    const tool = (name: string) => ({
      type: 'tool',
      name,
      tool_id: 'tool_x',
      preset_parameters: { text: 'x'.repeat(90_000) },
    })
    const scorers = ['a', 'b', 'c'].map(tool)
    refused(await app.key.post('/evals', { ...body, scorers }), 400, 'VALIDATION_FAILED', 'scorers')
    refused(await app.key.post('/evals', { ...body, scorers: scorers.slice(1) }), 400, 'TOOL_NOT_FOUND')
  })

  it('calls no judge, tool or decider for a deleted key', async () => {
    const agent_id = await app.echo('gone')
    await app.lanes.put('gone-judge', { rules: [{ reply: { text: '{"score": 1}', gate: 'gone-judge' }, times: 1 }] })
    await app.lanes.put('gone-other', { rules: [{ reply: { text: '{"score": 1}' } }] })
    const { id: tool_id } = await made(app.key, '/tools', { name: 'gone', execute: { url: 'http://127.0.0.1:1' } })
    const dataset_id = await app.dataset([item('x', 'Yes')])
    const scorers = [judge('gone-judge'), { type: 'tool', name: 'other', tool_id, pass_threshold: 0 }]
    const { id } = await app.eval({ agent_id, dataset_id, scorers })
    const resource = [`srn:${app.projectId}:eval:*`]
    const user = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['evaluations:*'], resource }] }])
    const run = await made(user, `/evals/${id}/runs`, {})
    await waiting('gone-judge')
    assert.equal((await app.admin.patch(`/users/${user.id}`, { disabled: true })).status, 200)
    await open('gone-judge')
    assert.equal((await ended(app.key, run)).errored_count, 1)
    const [{ error }] = await app.results(run)
    assert.deepEqual([error.code, error.meta.scorer], ['FORBIDDEN', 'other'])
  })

  it('makes no small items of a full project large', async () => {
    const other = await app.projectWith(['evaluations:*'])
    const { id } = await made(other.key, '/datasets', { name: 'full' })
    const path = `/datasets/${id}/items`
    const small = await made(other.key, path, item('x', 'y'.repeat(50)))
    await made(app.admin, '/quotas', {
      project_id: other.id,
      scope: 'project',
      metric: 'storage_bytes',
      window: 'current',
      limit: 120,
      mode: 'enforce',
    })
    const grown = { expected_output: 'y'.repeat(300) }
    for (const method of ['patch', 'put'] as const)
      refused(await other.key[method](`${path}/${small.id}`, grown), 409, 'QUOTA_STORAGE_EXCEEDED')
    assert.equal((await other.key.patch(`${path}/${small.id}`, { expected_output: null })).status, 200)
    // And what an item can be made with it can be changed to.
    const wide = await made(app.key, `/datasets/${await app.dataset([])}/items`, item('x'))
    const change = { input: item('x'.repeat(2 * MiB)).input }
    assert.equal((await app.key.patch(`/datasets/${wide.dataset_id}/items/${wide.id}`, change)).status, 200)
  })
})
