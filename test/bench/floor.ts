import { createHash, randomUUID } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import express from 'express'
import multer from 'multer'
import { reblock } from '#content/storage/reblock.ts'
import { newId } from '#core/base/ids.ts'
import { openPool } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { createEgress } from '#core/net/egress.ts'
import { openResolver } from '#core/net/resolver.ts'
import {
  consumeObject,
  findClient,
  findGrant,
  findObject,
  findUsername,
  putRefreshToken,
} from '#identity/grants/store.ts'

/**
 * The reference for the API: bare Express and one statement through the same Slonik pool, without identity,
 * permissions, quotas, validation, events or audit; its statements are sent as Slonik sends them by itself. Started as a separate process by bench/http.ts
 * and bench/files.ts.
 */
const pool = await openPool({ databaseUrl: process.env.DATABASE_URL as string, connections: 17, prepare: false })
const app = express()
app.use(express.json())

app.get('/actors/:id', async (req, res) => {
  res.json(await pool.one(sql.unsafe`select * from actors where id = ${req.params.id}`))
})

app.get('/actors', async (req, res) => {
  const project = String(req.query.project_id)
  const rows = (await pool.any(sql.unsafe`
    select t.*, (select sum(count)::bigint from row_counts where scope = ${project} and table_name = 'actors') as total
    from actors t where project_id = ${project} order by created_at desc, id desc limit 50`)) as { total: number }[]
  res.json({ data: rows.map(({ total: _, ...row }) => row), total: rows[0].total, limit: 50, offset: 0 })
})

app.post('/actors/bare', async (req, res) => {
  const { project_id: project, name } = req.body as { project_id: string; name: string }
  const made = await pool.one(
    sql.unsafe`insert into actors (id, project_id, name) values (${newId('actor')}, ${project}, ${name}) returning *`,
  )
  res.status(201).json(made)
})

// A task under its lock, its history, events and audit entry, one statement each in one transaction.
app.post('/tasks/:id/transitions', async (req, res) => {
  const { id } = req.params
  const row = await pool.connect(connection =>
    connection.transaction(async tx => {
      const before = (await tx.one(sql.unsafe`select * from tasks where id = ${id} for update`)) as {
        project_id: string
        state: string
        revision: number
      }
      const { project_id: project } = before
      const moved = await tx.one(sql.unsafe`
        update tasks set state = 'two', entered_state_at = now(), revision = revision + 1, entry_seq = entry_seq + 1,
          updated_at = now()
        where id = ${id} returning *`)
      await tx.query(sql.unsafe`
        insert into task_transitions (id, task_id, from_state, to_state, transition, principal_kind, principal_id, seq, created_at)
        values (${newId('task_tr')}, ${id}, ${before.state}, 'two', 'turn', 'api_key', 'key', ${before.revision + 1}, now())`)
      await tx.query(sql.unsafe`
        insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at, dispatched_at)
        values (${newId('evt')}, ${project}, 'tasks.transitioned', 'task', ${id}, ${JSON.stringify(moved)}, now(), now()),
          (${newId('evt')}, ${project}, 'audit_entries.created', 'audit_entry', ${id}, ${JSON.stringify({ id })}, now(), now())`)
      await tx.query(sql.unsafe`
        insert into audit_entries (id, project_id, principal_type, principal_id, action, resource_srn, resource_public_id, status, created_at)
        values (${newId('audit')}, ${project}, 'api_key', 'key', 'tasks:TransitionTask', ${`srn:${project}:task:${id}`}, ${id}, 200, now())`)
      return moved
    }),
  )
  res.json(row)
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

// A call from outside: the row of the started work and a message for a worker, in one transaction.
app.post('/firings', async (req, res) => {
  const { project_id: project, trigger_id: trigger } = req.query as Record<string, string>
  const id = newId('trg_fire')
  await pool.connect(connection =>
    connection.transaction(async tx => {
      await tx.query(sql.unsafe`
        insert into trigger_firings (id, project_id, trigger_id, source, target_type, input, idempotency_key)
        values (${id}, ${project}, ${trigger}, 'webhook', 'orchestration', ${JSON.stringify(req.body)}::json, ${randomUUID()})`)
      await tx.query(sql.unsafe`
        insert into pgboss.job (name, data, policy, singleton_key)
        values ('trigger.fire', ${JSON.stringify({ entity_id: id, work_id: id, project_id: project })}, 'stately', ${id})`)
    }),
  )
  res.status(202).json({ firing_id: id })
})

// A turn: a row before the model is called, the answer in the row afterwards. Streamed, the model's bytes are passed on as they come.
app.post('/turns', async (req, res) => {
  const id = newId('actor')
  const { project_id: project, prompt, stream } = req.body as { project_id: string; prompt: string; stream?: boolean }
  await pool.query(sql.unsafe`insert into actors (id, project_id, name) values (${id}, ${project}, ${prompt})`)
  const answer = await fetch(`${process.env.MODEL_URL}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'double-1', messages: [{ role: 'user', content: prompt }], stream }),
  })
  if (stream) {
    await pipeline(answer.body as ReadableStream, res)
    return
  }
  const { choices } = (await answer.json()) as { choices: { message: { content: string } }[] }
  const { content } = choices[0].message
  await pool.query(sql.unsafe`update actors set name = ${content} where id = ${id}`)
  res.json({ id, content })
})

// The request to the model as it came, and the bytes of the answer as they come.
app.post('/proxy/chat/completions', async (req, res) => {
  const answer = await fetch(`${process.env.MODEL_URL}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(req.body),
  })
  res.status(answer.status).type(answer.headers.get('content-type') ?? 'json')
  await pipeline(answer.body as ReadableStream, res)
})

// The vectors of a project with the nearest codes.
app.post('/search', async (req, res) => {
  const { project_id: project, code, limit } = req.body as { project_id: string; code: string; limit: number }
  const rows = await pool.any(sql.unsafe`
    select v.ref_id, encode(v.vec, 'base64') as vec from knowledge_vectors v
    where v.project_id = ${project} and v.source = 1
    order by bit_count(v.code # ${code}::bit varying) limit ${limit}`)
  res.json({ results: rows.length })
})

// What a refresh reads and writes; the grant and the token it names are there.
app.post('/oauth/refreshed', async (req, res) => {
  const { refresh_token: token, grant_id: grantId, client_id: clientId } = req.body as Record<string, string>
  await findClient(pool, clientId)
  await findObject(pool, 'RefreshToken', { by: 'id', value: token })
  const grant = await findGrant(pool, grantId)
  await findUsername(pool, grant?.user_id as string)
  await consumeObject(pool, 'RefreshToken', token, 0)
  const next = randomUUID()
  const expiresAt = new Date(Date.now() + 86_400_000)
  await putRefreshToken(pool, next, { sealed: 'v1.00000000.x.x.x', grantId, expiresAt })
  res.json({ refresh_token: next })
})

const egress = createEgress({
  allowHosts: process.env.EGRESS_ALLOW_HOSTS ?? '',
  resolve: openResolver({ servers: '' }),
})

// What a call of a tool cannot do without.
app.post('/called', async (_req, res) => {
  const answer = await egress.fetch(process.env.TOOL_URL as string)
  res.json(await answer.json())
})

const CHUNK_BYTES = 262_144

app.post('/null', async (req, res) => {
  await pipeline(req, createWriteStream('/dev/null'))
  res.json({})
})

const writeChunk = (id: string, seq: number, bytes: Buffer) =>
  pool.query(
    sql.unsafe`insert into file_blob_chunks (blob_id, seq, bytes) values (${id}, ${seq}, ${sql.binary(bytes)})`,
  )

// The body into the table that files have, in chunks of the same size.
app.post('/blobs', async (req, res) => {
  const id = randomUUID()
  const hash = createHash('sha256')
  let seq = 0
  for await (const block of reblock(req, CHUNK_BYTES, 1)) {
    hash.update(block)
    await writeChunk(id, seq++, block)
  }
  res.json({ id, sha256: hash.digest('hex') })
})

app.get('/blobs/:id', async (req, res) => {
  async function* chunks() {
    for (let seq = 0; ; seq++) {
      const bytes = await pool.maybeOneFirst(
        sql.unsafe`select bytes from file_blob_chunks where blob_id = ${req.params.id} and seq = ${seq}`,
      )
      if (!bytes) return
      yield bytes as Buffer
    }
  }
  await pipeline(Readable.from(chunks(), { objectMode: false, highWaterMark: CHUNK_BYTES }), res)
})

// A small file out of a form: its bytes, its row, its event and its audit entry, one statement each.
app.post('/files', multer().single('file'), async (req, res) => {
  const blob = randomUUID()
  const id = newId('file')
  const project = String(req.query.project_id)
  const { buffer, originalname } = req.file as Express.Multer.File
  const row = await pool.connect(connection =>
    connection.transaction(async tx => {
      await tx.query(
        sql.unsafe`insert into file_blob_chunks (blob_id, seq, bytes) values (${blob}, 0, ${sql.binary(buffer)})`,
      )
      const made = await tx.one(sql.unsafe`
        insert into files (id, project_id, path, filename, size, sha256, storage, location)
        values (${id}, ${project}, ${`/${id}`}, ${originalname}, ${buffer.length},
          ${sql.binary(createHash('sha256').update(buffer).digest())}, 'postgres', ${blob}) returning *`)
      await tx.query(sql.unsafe`
        insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at, dispatched_at)
        values (${newId('evt')}, ${project}, 'files.created', 'file', ${id}, ${JSON.stringify({ id })}, now(), now())`)
      await tx.query(sql.unsafe`
        insert into audit_entries (id, project_id, principal_type, principal_id, action, resource_srn, resource_public_id, status, created_at)
        values (${newId('audit')}, ${project}, 'api_key', 'key', 'files:UploadFile', ${`srn:${project}:file:*`}, ${id}, 201, now())`)
      return made
    }),
  )
  res.status(201).json(row)
})

const server = app.listen(0, '127.0.0.1', () =>
  console.log(JSON.stringify({ msg: 'floor is ready', port: (server.address() as AddressInfo).port })),
)
