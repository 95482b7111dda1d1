import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

/** Writes whose connections are cut or whose statements are cancelled wherever they are. */
describe('writes under cancels and lost connections', function () {
  this.timeout(60_000)
  const app = forSuite(startApp)
  let db: pg.Client

  before(async () => {
    db = new pg.Client(app.databaseUrl)
    await db.connect()
  })
  after(async () => {
    await db.end()
  })

  const CALLERS = 12
  const HITS = 60

  for (const how of ['pg_cancel_backend', 'pg_terminate_backend'])
    it(`are whole or not there, and are there where they were answered: ${how}`, async () => {
      const project = await app.project()
      const answered: string[] = []
      let refused = 0
      let over = false
      const caller = async () => {
        while (!over) {
          const { status, body } = await project.key.post('/actors', { name: how })
          if (status === 201) answered.push(body.id)
          else {
            assert.ok(status >= 500, `${status}: ${JSON.stringify(body)}`)
            refused++
          }
        }
      }
      const callers = Promise.all(Array.from({ length: CALLERS }, caller))
      for (let hit = 0; hit < HITS; hit++) {
        await sleep(10)
        await db.query(`select ${how}(pid) from (
          select pid from pg_stat_activity
          where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle' and query not ilike 'listen%'
          order by random() limit 2) a`)
      }
      over = true
      await callers
      assert.ok(answered.length > 0 && refused > 0, `${answered.length} answered, ${refused} refused`)

      const { rows } = await db.query(
        `select a.id, count(distinct e.id)::int as events, count(distinct u.id)::int as entries from actors a
        left join events e on e.resource_id = a.id and e.name = 'actors.created'
        left join audit_entries u on u.resource_public_id = a.id and u.action = 'actors:CreateActor' and u.status = 201
        where a.project_id = $1 group by a.id`,
        [project.id],
      )
      for (const row of rows) assert.deepEqual({ ...row, id: '' }, { id: '', events: 1, entries: 1 }, row.id)
      const made = new Set(rows.map(row => row.id))
      for (const id of answered) assert.ok(made.has(id), `${id} was answered and is not there (${refused} refused)`)
      // No connection kept a transaction: the next statement is committed by itself.
      for (let n = 0; n < CALLERS * 2; n++) {
        const { body } = await project.key.post('/actors', { name: 'after' })
        const { rowCount } = await db.query('select from actors where id = $1', [body.id])
        assert.equal(rowCount, 1)
      }
    })
})
