import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { type ActivityEntry, recordActivityInTx, recordActivityLater } from '#control/activity/record.ts'
import { pruneActivity } from '#control/activity/retention.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { openEvents, type StreamedEvent } from '../execution/streams.ts'
import { type Client, eventually, type Reply, startApp, type TestProject } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

type Entry = { id: string; created_at: string; summary: string; [field: string]: unknown }

const READ = ['activity:ListActivity', 'activity:ExportActivity']

describe('activity', () => {
  const app = forSuite(() => startApp({ env: { STREAM_PING_INTERVAL_MS: '100', ACTIVITY_RETENTION_DAYS: '30' } }))
  let project: TestProject
  beforeEach(async () => {
    project = await app.projectWith(READ)
  })
  const entry = (summary: string, more: Partial<ActivityEntry> = {}): ActivityEntry => ({
    project_id: project.id,
    kind: 'action_executed',
    summary,
    ...more,
  })
  const stored = (count: number, of = project) =>
    eventually(async () => {
      const [{ found }] = await app.rows('select count(*)::int as found from activity_entries where project_id = $1', [
        of.id,
      ])
      return found === count
    })
  /** Records entries and waits until they are stored; they have the order given. */
  const record = async (...entries: ActivityEntry[]) => {
    const [{ found }] = await app.rows('select count(*)::int as found from activity_entries where project_id = $1', [
      project.id,
    ])
    for (const one of entries) recordActivityLater(app.servicesOf(project.id), one)
    await stored(found + entries.length)
  }
  const feed = (query = '', as: Client = project.key) => as.get(`/activity${query}`)
  const summaries = ({ body }: Reply): string[] => body.data.map(({ summary }: Entry) => summary)
  const refused = ({ status, body }: Reply, code: string, expected = 400) =>
    assert.deepEqual([status, body.error?.code], [expected, code], JSON.stringify(body))

  it('shows entries with the severity of their kind', async () => {
    await record(
      entry('A tool ran', { detail: { tool_id: 'tool_1', action: 'look' }, agent_id: 'agent_1', ref_id: 'tool_1' }),
      entry('A tool is gone', { kind: 'tool_resolution_failed' }),
    )
    const { status, body } = await feed()
    assert.equal(status, 200)
    assert.deepEqual(Object.keys(body), ['data', 'next_cursor'])
    assert.equal(body.next_cursor, null)
    assert.equal(body.data[0].severity, 'warning')
    const { id, created_at, ...rest } = body.data[1]
    assert.match(id, /^acte_[0-9a-z]{26}$/)
    assert.match(created_at, /\.\d{3}Z$/)
    assert.deepEqual(rest, {
      project_id: project.id,
      kind: 'action_executed',
      severity: 'info',
      summary: 'A tool ran',
      detail: { tool_id: 'tool_1', action: 'look' },
      orchestration_run_id: null,
      agent_id: 'agent_1',
      generation_id: null,
      ref_id: 'tool_1',
    })
  })

  it('walks 120 entries in pages of 50, 50 and 20, and entries that come meanwhile shift none', async () => {
    await record(...Array.from({ length: 120 }, (_, n) => entry(`entry ${n}`)))
    const seen: string[] = []
    const sizes: number[] = []
    let cursor: string | null = null
    do {
      const page: Reply = await feed(cursor === null ? '' : `?cursor=${cursor}`)
      assert.equal(page.status, 200, JSON.stringify(page.body))
      sizes.push(page.body.data.length)
      seen.push(...summaries(page))
      cursor = page.body.next_cursor
      await record(entry('late'), entry('later'))
    } while (cursor !== null)
    assert.deepEqual(sizes, [50, 50, 20])
    assert.deepEqual(
      seen,
      Array.from({ length: 120 }, (_, n) => `entry ${119 - n}`),
    )
  })

  it('pages cleanly through entries of one millisecond', async () => {
    await record(...['a', 'b', 'c'].map(name => entry(name)))
    await app.rows(`update activity_entries set created_at = '2026-01-01T00:00:00.123Z' where project_id = $1`, [
      project.id,
    ])
    const seen: string[] = []
    for (let query: string | null = '?limit=1'; query; ) {
      const page: Reply = await feed(query)
      seen.push(...summaries(page))
      query = page.body.next_cursor && `?limit=1&cursor=${page.body.next_cursor}`
    }
    assert.deepEqual(seen, ['c', 'b', 'a'])
  })

  it('refuses cursors that it never gave', async () => {
    await record(entry('a'), entry('b'))
    const { next_cursor } = (await feed('?limit=1')).body
    const encoded = (text: string) => Buffer.from(text).toString('base64url')
    const [time, id] = Buffer.from(next_cursor, 'base64url').toString().split('|')
    for (const cursor of [
      'abc',
      '',
      encoded('x'),
      encoded(`${time}|`),
      encoded(`${time}|exc${id.slice(4)}`),
      encoded(`${time}|${id}|`),
      encoded(`2026-02-30T00:00:00.000Z|${id}`),
      encoded(`2026-01-01|${id}`),
      encoded(`|${id}`),
      '%00',
      `${next_cursor}%00`,
      encoded('\0'),
      `${next_cursor}=`,
      `${next_cursor.slice(0, -1)}`,
    ])
      refused(await feed(`?cursor=${cursor}`), 'ACTIVITY_INVALID_CURSOR')
    refused(await feed(`?cursor=${next_cursor}&cursor=${next_cursor}`), 'VALIDATION_FAILED')
  })

  it('takes a limit of at least 1, at most 100 of it, and no offset', async () => {
    await record(...Array.from({ length: 101 }, (_, n) => entry(`${n}`)))
    assert.equal((await feed('?limit=1000000')).body.data.length, 100)
    assert.equal((await feed('?limit=2')).body.data.length, 2)
    for (const query of ['limit=0', 'limit=-1', 'limit=1.5', 'limit=x', 'limit=', 'limit=1&limit=2', 'offset=0'])
      refused(await feed(`?${query}`), 'VALIDATION_FAILED')
  })

  it('needs a project where the credential has none', async () => {
    await record(entry('a'))
    refused(await feed('', app.admin), 'VALIDATION_FAILED')
    assert.deepEqual(summaries(await feed(`?project_id=${project.id}`, app.admin)), ['a'])
    assert.deepEqual(summaries(await feed()), ['a'])
  })

  it('filters by all given conditions together, and by one of several kinds and severities', async () => {
    await record(
      entry('one', { generation_id: 'gen_1' }),
      entry('two', { kind: 'approval_created', generation_id: 'gen_1', agent_id: 'agent_1' }),
      entry('three', { kind: 'approval_created', generation_id: 'gen_2', orchestration_run_id: 'orch_run_1' }),
      entry('four', { kind: 'exception_created', severity: 'critical' }),
      entry('five', { kind: 'share_revoked' }),
    )
    const found = async (query: string) => summaries(await feed(`?${query}`))
    assert.deepEqual(await found('kind=approval_created&generation_id=gen_1'), ['two'])
    assert.deepEqual(await found('kind=approval_created&kind=share_revoked&kind=approval_created'), [
      'five',
      'three',
      'two',
    ])
    assert.deepEqual(await found('kind=approval_created&kind=action_executed&limit=2'), ['three', 'two'])
    assert.deepEqual(await found('severity=critical'), ['four'])
    assert.deepEqual(await found('severity=critical&severity=warning'), ['five', 'four'])
    assert.deepEqual(await found('severity=info&agent_id=agent_1'), ['two'])
    assert.deepEqual(await found('orchestration_run_id=orch_run_1'), ['three'])
    assert.deepEqual(await found('agent_id=agent_2'), [])
    for (const query of ['kind=nope', 'severity=loud', 'kind=', 'from=yesterday'])
      refused(await feed(`?${query}`), 'VALIDATION_FAILED')
  })

  it('is bounded by times on both sides', async () => {
    await record(entry('a'), entry('b'), entry('c'))
    await app.rows(
      `update activity_entries set created_at = '2026-01-01T00:00:00Z'::timestamptz + (ascii(summary) - 97) * interval '1 hour'
       where project_id = $1`,
      [project.id],
    )
    const found = async (query: string) => summaries(await feed(`?${query}`))
    assert.deepEqual(await found('from=2026-01-01T01:00:00Z'), ['c', 'b'])
    assert.deepEqual(await found('to=2026-01-01T01:00:00Z'), ['b', 'a'])
    assert.deepEqual(await found('from=2026-01-01T00:30:00Z&to=2026-01-01T01:30:00Z'), ['b'])
    const lines = (await project.key.get(`/activity/export?project_id=${project.id}&to=2026-01-01T00:30:00Z`)).body
    assert.equal(JSON.parse(lines).summary, 'a')
  })

  it('is exported oldest first, one object a line, the same entries as in the feed', async () => {
    await record(
      ...Array.from({ length: 1203 }, (_, n) =>
        entry(`entry ${n}`, { kind: n % 2 ? 'schedule_fired' : 'action_executed' }),
      ),
    )
    const exported = await project.key.get(`/activity/export?project_id=${project.id}`)
    assert.equal(exported.status, 200)
    assert.match(exported.headers.get('content-type') as string, /^application\/x-ndjson/)
    assert.ok(exported.body.endsWith('}\n'))
    const entries: Entry[] = exported.body
      .trimEnd()
      .split('\n')
      .map((line: string) => JSON.parse(line))
    assert.deepEqual(
      entries.map(({ summary }) => summary),
      Array.from({ length: 1203 }, (_, n) => `entry ${n}`),
    )
    assert.deepEqual(entries.at(-1), (await feed('?limit=1')).body.data[0])
    const some = await project.key.get(`/activity/export?project_id=${project.id}&kind=schedule_fired`)
    assert.equal(some.body.trimEnd().split('\n').length, 601)
  })

  it('exports an empty body where nothing matches, and needs a project always', async () => {
    const none = await project.key.get(`/activity/export?project_id=${project.id}`)
    assert.deepEqual([none.status, none.body], [200, null])
    refused(await project.key.get('/activity/export'), 'VALIDATION_FAILED')
  })

  it('is read and exported by who may, and never shows other projects', async () => {
    await record(entry('mine'))
    const other = await app.projectWith(READ)
    assert.deepEqual(summaries(await feed('', other.key)), [])
    refused(await feed(`?project_id=${project.id}`, other.key), 'API_KEY_PROJECT_SCOPE', 403)
    const reader = await app.projectWith(['activity:ListActivity'])
    assert.equal((await feed('', reader.key)).status, 200)
    refused(await reader.key.get(`/activity/export?project_id=${reader.id}`), 'FORBIDDEN', 403)
    const exporter = await app.projectWith(['activity:ExportActivity'])
    refused(await feed('', exporter.key), 'FORBIDDEN', 403)
    refused(await exporter.key.get('/activity/stream'), 'FORBIDDEN', 403)
    assert.equal((await exporter.key.get(`/activity/export?project_id=${exporter.id}`)).status, 200)
  })

  it('keeps the entries of a transaction with it, or not at all', async () => {
    const write = (summary: string, fail: boolean) =>
      app.servicesOf(project.id).write(async tx => {
        recordActivityInTx(tx, entry(`${summary} 1`))
        recordActivityInTx(tx, entry(`${summary} 2`))
        if (fail) throw new Error('no')
      })
    await assert.rejects(write('undone', true))
    await write('done', false)
    assert.deepEqual(summaries(await feed()).sort(), ['done 1', 'done 2'])
  })

  it('never fails the work it is about, and what cannot be stored takes nothing else along', async () => {
    const circular: Record<string, unknown> = {}
    circular.self = circular
    recordActivityLater(app.servicesOf(project.id), entry('circular', { detail: circular }))
    recordActivityLater(app.servicesOf(project.id), entry('gone', { project_id: 'proj_00000000000000000000000000' }))
    recordActivityLater(
      app.servicesOf(project.id),
      entry('odd \0\n text \ud800', { detail: { text: '\0 \udfff' }, ref_id: '\0' }),
    )
    recordActivityLater(
      app.servicesOf(project.id),
      entry('long'.repeat(500), { detail: { id: 'tool_1', text: 'x'.repeat(100_000), list: Array(5000).fill(1) } }),
    )
    await stored(2)
    const [long, odd] = (await feed()).body.data
    assert.equal(odd.summary, 'odd text \u{fffd}')
    assert.equal(long.summary.length, 500)
    assert.deepEqual(
      [long.detail.id, long.detail.truncated, long.detail.text.length, 'list' in long.detail],
      ['tool_1', true, 1024, false],
    )
    assert.ok(app.logs.some(line => line.includes('activity entry not recorded')))
  })

  it('is recorded from within a transaction that takes long, and whatever becomes of that', async () => {
    await assert.rejects(
      app.servicesOf(project.id).write(async () => {
        recordActivityLater(app.servicesOf(project.id), entry('from within'))
        await onSeparateConnection(() => stored(1))
        throw new Error('undone')
      }),
      /undone/,
    )
    assert.deepEqual(summaries(await feed()), ['from within'])
  })

  it('outlasts connections that are lost, each entry once', async () => {
    let writing = true
    const cut = async () => {
      while (writing) {
        await app
          .rows(
            `select pg_terminate_backend(pid) from pg_stat_activity
           where datname = current_database() and pid <> pg_backend_pid() and query like '%activity_entries%'`,
          )
          .catch(() => {})
        await sleep(5)
      }
    }
    const cutting = cut()
    for (let n = 0; n < 300; n++) {
      recordActivityLater(app.servicesOf(project.id), entry(`entry ${n}`))
      if (n % 10 === 0) await sleep(5)
    }
    writing = false
    await cutting
    await eventually(async () => {
      const exported = await project.key.get(`/activity/export?project_id=${project.id}`)
      return (exported.body ?? '').split('\n').length === 301
    })
  })

  it('activity is deleted with its project', async () => {
    await record(entry('a'))
    assert.equal((await app.admin.delete(`/projects/${project.id}?force=true`)).status, 204)
    assert.deepEqual(await app.rows('select 1 from activity_entries where project_id = $1', [project.id]), [])
  })

  it('is kept for ACTIVITY_RETENTION_DAYS', async () => {
    await record(entry('old'), entry('new'))
    await app.rows(
      `update activity_entries set created_at = now() - interval '31 days' where summary = 'old' and project_id = $1`,
      [project.id],
    )
    assert.ok((await pruneActivity(app.servicesOf(project.id))) >= 1)
    assert.deepEqual(summaries(await feed()), ['new'])
    const config = { ...app.config, ACTIVITY_RETENTION_DAYS: 0 }
    const later = { now: () => new Date(Date.now() + 1000 * 86_400_000) }
    assert.equal(await pruneActivity({ ...app.servicesOf(project.id), config, clock: later as never }), 0)
  })

  describe('as a stream', () => {
    const open = async (query = '', headers: Record<string, string> = {}, key = project.key) => {
      const stream = await openEvents({ url: app.url, key }, `/activity/stream${query}`, undefined, headers)
      const messages = stream.messages[Symbol.asyncIterator]()
      const next = async (): Promise<StreamedEvent> => {
        const { value, done } = await messages.next()
        assert.ok(!done, 'the stream ended')
        return value
      }
      return {
        ...stream,
        next,
        take: async (count: number) => {
          const taken: StreamedEvent[] = []
          while (taken.length < count) taken.push(await next())
          return taken
        },
      }
    }
    const names = (events: StreamedEvent[]) => events.map(({ data }) => data.summary)

    it('shows entries as they come, under the cursor of each, and continues after a cursor', async () => {
      await record(entry('before'))
      const stream = await open()
      assert.match(stream.headers.get('content-type') as string, /^text\/event-stream/)
      recordActivityLater(app.servicesOf(project.id), entry('one'))
      recordActivityLater(app.servicesOf(project.id), entry('two', { kind: 'schedule_fired' }))
      recordActivityLater(app.servicesOf(project.id), entry('three'))
      const events = await stream.take(3)
      assert.deepEqual(names(events), ['one', 'two', 'three'])
      assert.deepEqual([events[0].event, events[0].data.project_id], ['entry', project.id])
      stream.close()
      await record(entry('four'))
      const resumed = await open('', { 'last-event-id': events[0].id })
      assert.deepEqual(names(await resumed.take(3)), ['two', 'three', 'four'])
      resumed.close()
      const fromCursor = await open('?kind=action_executed', { 'last-event-id': events[0].id })
      assert.deepEqual(names(await fromCursor.take(2)), ['three', 'four'])
      fromCursor.close()
      assert.deepEqual(summaries(await feed(`?cursor=${events[1].id}`)), ['one', 'before'])
    })

    it('waits with newer entries for a transaction that may commit an older one', async () => {
      const stream = await open()
      const events: StreamedEvent[] = []
      const reading = stream.take(3).then(taken => events.push(...taken))
      let written = () => {}
      const isWritten = new Promise<void>(resolve => {
        written = resolve
      })
      let finish = () => {}
      const finished = new Promise<void>(resolve => {
        finish = resolve
      })
      const slow = app.servicesOf(project.id).pool.transaction(async tx => {
        await tx.query(
          rawQuery(
            `insert into activity_entries (id, project_id, kind, severity, summary)
          values ('acte_0000000000000000000000000z', $1, 'action_executed', 'info', 'slow')`,
            [project.id],
          ),
        )
        written()
        await finished
      })
      await isWritten
      await record(entry('quick'))
      await eventually(async () => (await feed()).body.data.length === 1)
      assert.deepEqual(events, [])
      finish()
      await slow
      recordActivityLater(app.servicesOf(project.id), entry('last'))
      await reading
      assert.deepEqual(names(events), ['slow', 'quick', 'last'])
      stream.close()
    })

    it('ends when its caller loses the right to it', async () => {
      const key = await app.admin.post('/project-keys', { project_id: project.id })
      const stream = await open('', {}, app.as(key.body.secret))
      recordActivityLater(app.servicesOf(project.id), entry('one'))
      const first = await stream.next()
      await app.admin.delete(`/project-keys/${key.body.id}`)
      const last = await stream.next()
      assert.deepEqual([last.event, last.data.code, last.id], ['error', 'UNAUTHORIZED', first.id])
    })

    it('refuses a place that is none, and a credential without a project', async () => {
      refused(await project.key.get('/activity/stream', { 'last-event-id': 'abc' }), 'ACTIVITY_INVALID_CURSOR')
      refused(await app.admin.get('/activity/stream'), 'VALIDATION_FAILED')
    })
  })
})
