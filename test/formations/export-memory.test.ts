import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { client, startApp } from '../support/app.ts'
import { processorMs } from '../support/event-loop.ts'
import { HEAP_FLAGS, resident, startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

const MIB = 1024 * 1024

describe('exports of large resources', function () {
  this.timeout(180_000)
  const app = forSuite(startApp)
  const project = forSuite(() => app.projectWith(['formations:ExportTemplate', 'tools:GetTool']))

  const insertTools = (projectId: string, count: number, bytes: number) =>
    app.pool.query(sql.unsafe`
      insert into tools (id, project_id, name, type, parameters)
      select 'tool_' || lpad(n::text, 26, '0'), ${projectId}, 'tool ' || n, 'client',
        json_build_object('type', 'object', 'description', repeat('x', ${bytes}))
      from generate_series(1, ${count}) n`)

  it('of 300 MiB are refused with the memory of one', async function () {
    if (process.platform !== 'linux') this.skip()
    await insertTools(project.id, 300, MIB - 100_000)
    const web = await startProcess('web', app.databaseUrl, {}, [], HEAP_FLAGS)
    try {
      const before = await resident(web.pid)
      const { status, body } = await client(web.url, project.key.token).post('/formations/export', { types: ['tool'] })
      assert.deepEqual([status, body.error.meta.problems[0].code], [400, 'TOO_LARGE'])
      const grown = (await resident(web.pid)).most - before.now
      assert.ok(grown < 80 * MIB, `${Math.round(grown / MIB)} MiB`)
    } finally {
      await web.kill()
    }
  })

  it('of texts that resemble IDs take linear time', async () => {
    const other = await app.projectWith(['formations:ExportTemplate', 'tools:GetTool'])
    const { id } = (await app.admin.post('/tools', { project_id: other.id, name: 'letters', type: 'client' })).body
    for (const part of ['a', 'a_', 'agent_01h455vb4pex5vsknk084sn02', '_']) {
      const description = part.repeat(Math.floor((MIB - 2_000) / part.length))
      const parameters = { type: 'object', description }
      await app.pool.query(
        sql.unsafe`update tools set parameters = ${JSON.stringify(parameters)}::json where id = ${id}`,
      )
      let reply: any
      const ms = await processorMs(async () => {
        reply = await other.key.post('/formations/export', { types: ['tool'] })
      })
      assert.equal(reply.status, 200, JSON.stringify(reply.body).slice(0, 500))
      assert.deepEqual(reply.body.template.resources.ToolLetters.properties.parameters, parameters)
      assert.ok(ms < 2_000, `${ms} ms for ${part}`)
    }
  })
})
