import assert from 'node:assert/strict'
import { checkStorage } from '#control/quotas/storage.ts'
import { type Footprint, footprints } from '#control/storage/footprint.ts'
import { snapshotProjects, snapshotQueue } from '#control/storage/snapshot.ts'
import { manualClock } from '#core/base/clock.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { workForConcerns } from '#core/modules/module.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { CELL_COUNT, eventually, startApp, type TestApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { loadBeside } from '../support/modules.ts'
import { createdBy } from '../support/replies.ts'
import { usageOf } from './usage-support.ts'

const DAY_MS = 86_400_000

// A part of the footprint that one project can make fail.
const broken = new Set<string>()
let failing = false
const breaking: Footprint = project => ({
  bytes: sql.fragment`select case when ${failing} and ${project} = any(${sql.array([...broken], 'text')})
    then 1 / (length(${project}) - length(${project})) else 0 end`,
})

const extensions = [footprints.with(breaking)]

describe('storage', () => {
  let app: TestApp
  const clock = manualClock(new Date('2026-07-07T12:31:20.500Z'))
  const run = (text: string, values: unknown[] = []) => app.pool.query(rawQuery(text, values))
  const snapshots = (projectId: string) =>
    app.rows('select day, bytes, chunk_count from storage_snapshots where project_id = $1 order by day', [projectId])
  const events = async (projectId: string, name: string): Promise<any[]> =>
    (await storedEvents(app.pool, { project: projectId, name })).map(({ envelope }) => envelope)
  const limit = (projectId: string, bytes: number, fields: object = {}) =>
    createdBy(app.admin, '/quotas', {
      project_id: projectId,
      scope: 'project',
      metric: 'storage_bytes',
      window: 'current',
      limit: bytes,
      ...fields,
    })
  const stored = (projectId: string, bytes: number, day = '2026-07-07') =>
    run(
      `insert into storage_snapshots (project_id, day, bytes, chunk_count) values ($1, $2, $3, 0)
       on conflict (project_id, day) do update set bytes = excluded.bytes`,
      [projectId, day, bytes],
    )
  const check = (projectId: string, delta: number) => checkStorage(app.servicesOf(projectId), projectId, delta)
  /** Takes snapshots in all cells; returns how many projects of all were measured, and how many were not. */
  const snapshot = async (options: Parameters<typeof snapshotProjects>[1]) => {
    const taken = await app.inEachCell(services => snapshotProjects(services, options))
    return taken.reduce((all, { measured, failed }) => ({
      measured: all.measured + measured,
      failed: all.failed + failed,
    }))
  }
  const refusal = async (work: Promise<unknown>): Promise<any> => {
    try {
      await work
    } catch (error) {
      return error
    }
    return null
  }

  let unload = () => {}
  before(async () => {
    unload = loadBeside({ extensions })
    app = await startApp({ clock })
  })
  after(async () => {
    await app.close()
    unload()
  })

  describe('checks', () => {
    it('measure only the added bytes of a project that was never metered', async () => {
      const { id } = await app.project()
      const quota = await limit(id, 10)
      await check(id, 10)
      const refused = await refusal(check(id, 11))
      assert.equal(refused.code, 'QUOTA_STORAGE_EXCEEDED')
      assert.equal(refused.status, 409)
      assert.deepEqual(refused.meta, { quota_id: quota.id, metric: 'storage_bytes', limit: 10, current_bytes: 11 })
      assert.equal(refused.headers, undefined)
    })

    it('add to the newest snapshot, and refuse nothing new to a project that is exactly full', async () => {
      const { id } = await app.project()
      await limit(id, 100)
      await stored(id, 500, '2026-07-05')
      await stored(id, 90, '2026-07-06')
      await check(id, 10)
      assert.equal((await refusal(check(id, 11))).meta.current_bytes, 101)
      await stored(id, 100, '2026-07-06')
      await check(id, 0)
      await stored(id, 101, '2026-07-06')
      assert.equal((await refusal(check(id, 0))).meta.current_bytes, 101)
    })

    it('see a limit, a mode and a quota as they are now', async () => {
      const { id } = await app.project()
      await check(id, 1000)
      const quota = await limit(id, 10)
      assert.ok(await refusal(check(id, 11)))
      await app.admin.patch(`/quotas/${quota.id}`, { limit: 11 })
      await check(id, 11)
      await app.admin.patch(`/quotas/${quota.id}`, { limit: 10, mode: 'monitor' })
      await check(id, 11)
      await app.admin.patch(`/quotas/${quota.id}`, { mode: 'enforce' })
      assert.ok(await refusal(check(id, 11)))
      await app.admin.delete(`/quotas/${quota.id}`)
      await check(id, 11)
    })

    it('are about their own project', async () => {
      const { id } = await app.project()
      const other = await app.project()
      await limit(other.id, 1)
      await stored(other.id, 1000)
      await check(id, 11)
    })

    it('cost no statement without a quota, and one with it, on the connection of the caller', async () => {
      const free = (await app.project()).id
      const capped = (await app.project(undefined, free)).id
      await limit(capped, 10)
      const count = async (id: string) => {
        const before = app.statements.length
        await check(id, 1)
        return app.statements.length - before
      }
      await eventually(async () => (await count(free)) === 0)
      await eventually(async () => (await count(capped)) === 1)
      assert.deepEqual(await Promise.all([count(free), count(free)]), [0, 0])
      // A transaction that is open continues alone: with one connection in all it would wait for itself endlessly.
      const url = app.databaseUrlOf(free)
      const cramped = await openServices(
        { ...app.config, DATABASE_URL: url, DATABASE_LISTEN_URL: url, DATABASE_POOL_MAX: 2 },
        { log: app.services.log, role: 'web', clock },
      )
      try {
        await Promise.all(Array.from({ length: 20 }, () => cramped.write(tx => checkStorage(cramped, capped, 1, tx))))
      } finally {
        await cramped.close()
      }
    })
  })

  describe('reports', () => {
    it('report a breach once per window although each is refused', async () => {
      const { id } = await app.project()
      const quota = await limit(id, 10)
      await stored(id, 5, '2026-07-06')
      await Promise.all(Array.from({ length: 10 }, () => refusal(check(id, 6))))
      const [fired] = await eventually(async () => {
        const found = await events(id, 'quota.exceeded')
        return found.length > 0 ? found : null
      })
      assert.deepEqual(fired.data, {
        quota_id: quota.id,
        project_id: id,
        scope: 'project',
        scope_ref: null,
        metric: 'storage_bytes',
        meter_type: null,
        window: 'current',
        // The UTC day of the snapshot.
        window_key: '2026-07-06Z',
        limit: 10,
        observed_value: 11,
        mode: 'enforce',
      })
      await refusal(check(id, 7))
      await stored(id, 20, '2026-07-07')
      await refusal(check(id, 0))
      const both = await eventually(async () => {
        const found = await events(id, 'quota.exceeded')
        return found.length > 1 ? found : null
      })
      assert.deepEqual(
        both.map(({ data }) => [data.window_key, data.observed_value]),
        [
          ['2026-07-06Z', 11],
          ['2026-07-07Z', 20],
        ],
      )
    })

    it('let a monitored breach pass, with one event and one audit entry', async () => {
      const { id } = await app.project()
      const quota = await limit(id, 10, { mode: 'monitor' })
      for (let round = 0; round < 5; round++) await check(id, 11)
      const monitored = async () =>
        (await app.admin.get(`/audit-log?project_id=${id}&action=quotas:MonitorBreach`)).body.data
      const [entry] = await eventually(async () => (await monitored()).length > 0 && monitored())
      assert.deepEqual(entry.detail, {
        kind: 'quota_monitor_breach',
        metric: 'storage_bytes',
        meter_type: null,
        scope: 'project',
        scope_ref: null,
        window: 'current',
        // Today, while there is no snapshot.
        window_key: '2026-07-07Z',
        limit: 10,
        observed_value: 11,
      })
      assert.deepEqual(
        [entry.resource_public_id, entry.principal_type, entry.principal_id, entry.status],
        [quota.id, null, null, 200],
      )
      await check(id, 11)
      assert.equal((await monitored()).length, 1)
      assert.equal((await events(id, 'quota.exceeded')).length, 1)
    })

    it('warn at the requested fractions before the limit is reached', async () => {
      const { id } = await app.project()
      const quota = await limit(id, 100, { warn_at: [0.5, 0.8] })
      await check(id, 49)
      await check(id, 60)
      const [warned] = await eventually(async () => {
        const found = await events(id, 'quotas.warned')
        return found.length > 0 ? found : null
      })
      assert.deepEqual(warned.data, {
        ...(await app.admin.get(`/quotas/${quota.id}`)).body,
        window_key: '2026-07-07Z',
        observed_value: 60,
        fraction: 0.5,
      })
      await check(id, 90)
      await eventually(async () => (await events(id, 'quotas.warned')).length === 2)
      assert.equal((await events(id, 'quota.exceeded')).length, 0)
    })

    it('are made at the next check when the process was lost before', async () => {
      const { id } = await app.project()
      await limit(id, 10)
      const mute = { ...app.servicesOf(id), write: () => Promise.reject(new Error('the process is gone')) }
      assert.ok(await refusal(checkStorage(mute, id, 11)))
      assert.equal((await events(id, 'quota.exceeded')).length, 0)
      assert.ok(await refusal(check(id, 11)))
      await eventually(async () => (await events(id, 'quota.exceeded')).length === 1)
    })
  })

  describe('usage of a quota', () => {
    it('is the newest snapshot and its day', async () => {
      const { id } = await app.project()
      const quota = await limit(id, 100)
      const usage = async () => (await app.admin.get(`/quotas/${quota.id}/usage`)).body
      assert.deepEqual(await usage(), {
        window_key: '2026-07-07Z',
        observed_value: null,
        limit: 100,
        remaining: null,
        resets_at: null,
        actors: null,
      })
      await stored(id, 30, '2026-07-05')
      assert.deepEqual(await usage(), {
        window_key: '2026-07-05Z',
        observed_value: 30,
        limit: 100,
        remaining: 70,
        resets_at: null,
        actors: null,
      })
      await stored(id, 130, '2026-07-06')
      assert.deepEqual([(await usage()).observed_value, (await usage()).remaining], [130, 0])
    })
  })

  describe('snapshots', () => {
    const file = (projectId: string, id: string, size: number | null, storage: string | null = null) =>
      run(
        `insert into files (id, project_id, path, filename, size, storage, sha256, location)
         values ($1, $2, '/' || $1, $1, $3, $4, $5, $6)`,
        [id, projectId, size, storage, storage && Buffer.alloc(32), storage === 'local' ? id : null],
      )
    const document = async (projectId: string, name: string, kind = 'document') => {
      await run(
        `insert into documents (id, project_id, file_id, kind, status, filename, size, chunk_strategy)
         values ('doc_' || $2, $1, $2, $3, 'ready', $2, 0, 'whole')`,
        [projectId, name, kind],
      )
    }

    it('count files, texts of chunks and vectors, and nothing else', async () => {
      const { id } = await app.project()
      const { pool } = app.servicesOf(id)
      const write = (text: string, values: unknown[] = []) => pool.any(rawQuery(text, values)) as Promise<any[]>
      await file(id, 'declared', 100)
      await file(id, 'unknown', null)
      await file(id, 'stored', 20, 'local')
      await file(id, 'backing', 7, 'text')
      await document(id, 'backing')
      await file(id, 'message', 1000, 'text')
      await document(id, 'message', 'message')
      await write(`insert into document_texts values ('doc_backing', repeat('x', 5000))`)
      await write(
        `insert into document_versions (document_id, version, chunk_strategy, content)
         values ('doc_backing', 1, 'whole', repeat('x', 5000))`,
      )
      for (const [index, content] of ['häh', 'x'.repeat(10_000)].entries())
        await write(
          `insert into document_chunks (id, document_id, project_id, chunk_index, char_start, char_end, content, tsv, tsv_config)
           values ('chk_' || $2, 'doc_backing', $1, $2::int, 0, 3, $3, to_tsvector('simple', ''), 'simple')`,
          [id, index, content],
        )
      const spaces = await write(
        `insert into embedding_spaces (provider, model, dimensions, code_version)
         values ('local', 'a', 8, 1), ('local', 'b', 16, 1) returning id`,
      )
      for (const [index, space] of [spaces[0], spaces[0], spaces[1]].entries())
        await write(
          `insert into knowledge_vectors (project_id, source, container_id, ref_id, segment, space_id, code, vec)
           values ($1, 1, 'doc_backing', 'chk_0', $2, $3, b'1', '')`,
          [id, index, space.id],
        )
      await snapshot({ all: true })
      assert.deepEqual(await snapshots(id), [
        { day: '2026-07-07', bytes: 100 + 20 + 7 + 4 + 10_000 + 4 * (8 + 8 + 16), chunk_count: 2 },
      ])
      const bytes = 100 + 20 + 7 + 4 + 10_000 + 4 * 32
      const [made, ...others] = await usageOf(app, id)
      assert.deepEqual(others, [])
      assert.deepEqual(
        [made.idempotency_key, made.meter_type, made.provider, made.model, made.source],
        [`storage:${id}:2026-07-07`, 'storage', 'platform', 'gb-day', null],
      )
      assert.deepEqual(
        made.components.map(({ component, quantity, unit }: any) => [component, quantity, unit]),
        [
          ['gb_day', bytes / 1e9, 'gb_day'],
          ['chunk_count', 2, 'count'],
        ],
      )
      await snapshot({ all: true })
      assert.equal((await usageOf(app, id)).length, 1)
    })

    it('end at the largest number, however many sizes are declared', async () => {
      const { id } = await app.project()
      await run(
        `insert into files (id, project_id, path, filename, size)
         select 'declared' || n, $1, '/' || n, 'x', 9007199254740991 from generate_series(1, 1100) n`,
        [id],
      )
      await snapshot({ all: true })
      assert.equal((await snapshots(id))[0]?.bytes, Number.MAX_SAFE_INTEGER)
    })

    it('are of zero bytes for a project that stores nothing, which is not billed', async () => {
      const { id } = await app.project()
      await snapshot({ all: true })
      assert.deepEqual(await snapshots(id), [{ day: '2026-07-07', bytes: 0, chunk_count: 0 }])
      assert.deepEqual(await usageOf(app, id), [])
    })

    it('are taken again of all projects, or of projects without one of the UTC day', async () => {
      const { id } = await app.project()
      await snapshot({ all: true })
      await file(id, 'later', 50)
      assert.equal((await snapshot({ all: false })).measured, 0)
      assert.equal((await snapshots(id))[0].bytes, 0)
      await snapshot({ all: true })
      assert.equal((await snapshots(id))[0].bytes, 50)
      clock.advance(DAY_MS)
      assert.ok((await snapshot({ all: false })).measured > 0)
      assert.deepEqual(
        (await snapshots(id)).map(({ day, bytes }) => [day, bytes]),
        [
          ['2026-07-07', 50],
          ['2026-07-08', 50],
        ],
      )
    })

    it('skip a project that cannot be measured and take it up again', async () => {
      const { id } = await app.project()
      const others = [await app.project(), await app.project()]
      broken.add(id)
      failing = true
      const first = await snapshot({ all: false })
      failing = false
      assert.equal(first.failed, 1)
      assert.deepEqual(await snapshots(id), [])
      for (const other of others) assert.equal((await snapshots(other.id)).length, 1)
      assert.ok(app.logs.some(line => line.includes('storage measurement failed') && line.includes(id)))
      assert.deepEqual(await snapshot({ all: false }), { measured: 1, failed: 0 })
      assert.equal((await snapshots(id)).length, 1)
    })

    it('are kept for 40 days, the newest always', async () => {
      const { id } = await app.project()
      await stored(id, 1, '2026-05-01')
      await stored(id, 2, '2026-07-01')
      await snapshot({ all: true })
      assert.deepEqual(
        (await snapshots(id)).map(({ day }) => day),
        ['2026-07-01', clock.now().toISOString().slice(0, 10)],
      )
    })

    it('take one statement a project besides its transaction', async function () {
      if (CELL_COUNT > 1) return this.skip()
      await app.project()
      const before = app.statements.length
      const { measured } = await snapshot({ all: true })
      // The list of projects and their prices, each project, and the usage of those that store something.
      const billed = app.statements.slice(before).filter(text => text.includes('insert into usage_events'))
      const others = app.statements.length - before - billed.length - 2 - measured
      // Work in the background may send some.
      assert.ok(others >= 0 && others < measured, `${others}`)
    })

    it('stop between two projects when the worker does', async () => {
      const stopping = AbortSignal.abort()
      assert.deepEqual(await snapshot({ all: true, stopping }), { measured: 0, failed: 0 })
    })

    it('page through more projects than one query reads', async () => {
      await run(
        `insert into projects (id, name) select 'proj_' || lpad(n::text, 26, '0'), 'many ' || n from generate_series(1, 600) n`,
      )
      assert.ok((await snapshot({ all: false })).measured >= 600)
      assert.deepEqual(
        await app.rows(
          `select count(*)::int as n from projects p
          where not exists (select 1 from storage_snapshots s where s.project_id = p.id and s.day = $1)`,
          [clock.now().toISOString().slice(0, 10)],
        ),
        [{ n: 0 }],
      )
    })
  })

  describe('a worker', () => {
    it('measures every project when it starts, and checks every hour for missing snapshots', async () => {
      const { id } = await app.project()
      const other = await startApp({ databaseUrl: app.databaseUrl, clock, workers: ['snapshot'] })
      try {
        await eventually(async () => (await snapshots(id)).length === 1)
        const late = await app.project()
        const tick = workForConcerns(['snapshot']).schedules.find(({ name }) => name === 'storage snapshots')
        assert.equal(tick?.when, '2 * * * *')
        assert.equal(tick?.queue, snapshotQueue)
        await other.inEachCell(({ queues }) =>
          queues.send([{ queue: snapshotQueue, data: tick?.data(new Date()) as object }]),
        )
        await eventually(async () => (await snapshots(late.id)).length === 1)
        assert.ok(other.logs.some(line => line.includes('storage measured')))
      } finally {
        await other.close()
      }
    })
  })
})
