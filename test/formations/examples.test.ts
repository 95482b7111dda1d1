import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const folder = path.resolve(import.meta.dirname, '../../examples/templates')

/** Templates with the values that they need, another value, and the resource that this one changes. */
const TEMPLATES = [
  { file: 'support-agent.yaml', needed: { ModelKey: 'secret' }, other: { DailyTokens: '10' }, changes: 'Budget' },
  { file: 'help-center.yaml', needed: {}, other: { Language: 'de' }, changes: 'Welcome' },
  { file: 'evaluated-workflow.yaml', needed: {}, other: { PassRate: '0.5' }, changes: 'Quality' },
]

describe('the templates of the examples', () => {
  const app = forSuite(() => startApp({ workers: ['orchestration'], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  const project = forSuite(() => app.project())

  it('are all covered by these tests', () => {
    assert.deepEqual(fs.readdirSync(folder).sort(), TEMPLATES.map(({ file }) => file).sort())
  })

  for (const { file, needed, other, changes } of TEMPLATES)
    it(`deploy, change and delete: ${file}`, async () => {
      const template = fs.readFileSync(path.join(folder, file), 'utf8')
      const { body: formation } = await project.key.post('/formations', { name: file, template, parameters: needed })
      assert.equal(formation.status, 'active', JSON.stringify(formation))
      const actionsWith = async (parameters: object): Promise<string[]> => {
        const { body } = await project.key.post('/formations/plan', { formation_id: formation.id, parameters })
        return body.changes.flatMap(({ action, logical_id }: any) => (action === 'no-op' ? [] : [action, logical_id]))
      }
      assert.deepEqual(await actionsWith(needed), [])
      const parameters = { ...needed, ...other }
      assert.deepEqual(await actionsWith(parameters), ['update', changes])
      const { body: changed } = await project.key.put(`/formations/${formation.id}`, { template, parameters })
      assert.equal(changed.status, 'active', JSON.stringify(changed.error))
      assert.deepEqual(await actionsWith(parameters), [])
      for (const value of Object.values(changed.outputs)) assert.ok(value)
      const { status, body } = await project.key.delete(`/formations/${formation.id}`)
      assert.equal(status, 200, JSON.stringify(body))
      assert.equal((await project.key.get('/ai-providers')).body.total, 0)
      assert.equal((await project.key.get('/agents')).body.total, 0)
    })
})
