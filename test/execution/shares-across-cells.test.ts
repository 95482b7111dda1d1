import assert from 'node:assert/strict'
import { startCells } from '../support/cells.ts'
import { forSuite } from '../support/suite.ts'

describe('shares between cells', function () {
  this.timeout(120_000)
  const cells = forSuite(() => startCells({ env: { SHARES_ALLOW_PUBLIC: 'true' } }))

  const toolOf = async (cell: string) => {
    const project = await cells.project(cell)
    const made = await project.key.post('/tools', { name: 'find', execute: { url: 'https://tool.example/' } })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return { ...project, resource: `srn:${project.id}:tool:${made.body.id}` }
  }

  it('are refused to the publisher and to the grantee, and possible within a cell', async () => {
    const [home, second, neighbor] = [await toolOf('home'), await toolOf('second'), await cells.project('second')]
    const share = (publisher: typeof home, grantee: string) =>
      publisher.key.post('/shares', { resource: publisher.resource, actions: ['tools:CallTool'], grantee })
    for (const [publisher, grantee] of [
      [home, second],
      [second, home],
    ]) {
      const refused = await share(publisher, grantee.id)
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'SHARE_ACROSS_CELLS'])
      const open = await share(publisher, '*')
      assert.equal(open.status, 201, JSON.stringify(open.body))
      for (const [client, body] of [
        [grantee.key, undefined],
        [cells.admin, { project_id: grantee.id }],
      ] as const) {
        const across = await client.post(`/shares/${open.body.id}/accept`, body)
        assert.deepEqual([across.status, across.body.error.code], [409, 'SHARE_ACROSS_CELLS'])
      }
      assert.equal((await grantee.key.get(`/shares/${open.body.id}`)).status, 404)
    }
    const within = await share(second, neighbor.id)
    assert.equal(within.status, 201, JSON.stringify(within.body))
    const accepted = await neighbor.key.post(`/shares/${within.body.id}/accept`)
    assert.equal(accepted.status, 200, JSON.stringify(accepted.body))
    // A project that is in no cell has the answer of a deployment without cells.
    const unknown = await share(home, `proj_${'0'.repeat(26)}`)
    assert.deepEqual([unknown.status, unknown.body.error.code], [400, 'VALIDATION_FAILED'])
  })
})
