import type { AddressInfo } from 'node:net'
import express from 'express'
import { openPool, sql } from '../../src/core/db.ts'
import { newId } from '../../src/core/ids.ts'

/**
 * What the API is measured against: bare Express and one statement through the same Slonik pool, without identity,
 * permissions, quotas, validation, events or audit; its statements are sent as Slonik sends them by itself. Started as a process of its own by bench/http.ts.
 */
const pool = await openPool({ databaseUrl: process.env.DATABASE_URL as string, connections: 17, prepare: false })
const app = express()
app.use(express.json())

app.get('/actors/:id', async (req, res) => {
  res.json(await pool.one(sql.unsafe`select * from actors where id = ${req.params.id}`))
})

app.get('/actors', async (req, res) => {
  res.json(
    await pool.any(sql.unsafe`
      select * from actors where project_id = ${String(req.query.project_id)} order by created_at desc, id desc limit 50`),
  )
})

// The row, its event and its audit entry, one statement each in one transaction.
app.post('/actors', async (req, res) => {
  const id = newId('actor')
  const { project_id: project, name } = req.body as { project_id: string; name: string }
  const row = await pool.connect(connection =>
    connection.transaction(async tx => {
      const made = await tx.one(
        sql.unsafe`insert into actors (id, project_id, name) values (${id}, ${project}, ${name}) returning *`,
      )
      await tx.query(sql.unsafe`
        insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at, dispatched_at)
        values (${newId('evt')}, ${project}, 'actors.created', 'actor', ${id}, ${JSON.stringify(made)}, now(), now())`)
      await tx.query(sql.unsafe`
        insert into audit_entries (id, project_id, principal_type, principal_id, action, resource_srn, resource_public_id, status, created_at)
        values (${newId('audit')}, ${project}, 'api_key', 'key', 'actors:CreateActor', ${`srn:${project}:actor:*`}, ${id}, 201, now())`)
      return made
    }),
  )
  res.status(201).json(row)
})

const server = app.listen(0, '127.0.0.1', () =>
  console.log(JSON.stringify({ msg: 'floor is ready', port: (server.address() as AddressInfo).port })),
)
