import assert from 'node:assert/strict'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { tools } from './support.ts'
import { PHRASED } from './tasks-phrased.ts'

/** Finding, describing and calling tools through the five that are listed. */
describe('discovery of tools', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  let call: ReturnType<typeof tools>
  before(async () => {
    call = tools(app.url, app.admin.token)
  })

  it('finds the right tool among the first five for 100 phrased tasks', async () => {
    assert.ok(PHRASED.length >= 100)
    const missed = []
    for (const [query, name] of PHRASED) {
      const { structuredContent } = await call('search-tools', { query, limit: 5 })
      const found = structuredContent.tools.map((tool: any) => tool.name)
      if (!found.includes(name)) missed.push(`${query}: ${name} is not among ${found}`)
    }
    assert.deepEqual(missed, [])
  })

  it('finds the tools to upload a file', async () => {
    const ask = tools(app.url, project.key.token)
    const [{ name }] = (await ask('search-tools', { query: 'upload a file' })).structuredContent.tools
    const [tool] = (await ask('describe-tools', { names: [name] })).structuredContent.tools
    assert.equal(tool.action, 'files:UploadFile')
    const args = { prefix: '/notes', filename: 'a.txt', content: Buffer.from('hello').toString('base64') }
    const validate = new Ajv2020({ strict: false, validateFormats: false }).compile(tool.input_schema)
    assert.ok(validate(args), JSON.stringify(validate.errors))
    const { structuredContent } = await ask('call-tool', { name, arguments: args })
    assert.equal((await project.key.get(`/files/${structuredContent.id}`)).body.path, '/notes/a.txt')
  })

  it('filters by module and limits results', async () => {
    const { tools: found, hidden } = (await call('search-tools', { query: 'list', module: 'files', limit: 2 }))
      .structuredContent
    assert.equal(found.length, 2)
    assert.equal(hidden, 0)
    for (const tool of found) assert.deepEqual([tool.module, tool.read_only], ['files', true])
    assert.deepEqual(Object.keys(found[0]), ['name', 'title', 'summary', 'module', 'read_only'])
    assert.equal(
      (await call('search-tools', { query: 'x'.repeat(201) })).structuredContent.error.code,
      'VALIDATION_FAILED',
    )
    const confined = await call('search-tools', { query: 'delete a file' }, { query: '?read_only=true' })
    assert.ok(confined.structuredContent.tools.every((tool: any) => tool.read_only))
  })

  it('lists unknown tools, and calls no discovery tool by name', async () => {
    const { tools: known, unknown } = (await call('describe-tools', { names: ['get-file', 'nope', 'call-tool'] }))
      .structuredContent
    assert.deepEqual(
      known.map(({ name }: any) => name),
      ['get-file'],
    )
    assert.deepEqual(unknown, ['nope', 'call-tool'])
    for (const name of ['search-tools', 'call-tool', 'get-docs', 'nope'])
      assert.equal((await call('call-tool', { name })).error.code, -32602)
  })

  it('reads only pages of the manual', async () => {
    const { pages } = (await call('get-docs')).structuredContent
    assert.ok(pages.some(({ path, title }: any) => path === '/docs/guides/tools.md' && title.length > 0))
    assert.ok(pages.some(({ path }: any) => path === '/docs/reference/agents.md'))
    const page = await call('get-doc-page', { path: '/docs/guides/tools.md' })
    assert.match(page.content[0].text, /^# /)
    for (const path of [
      '../package.json',
      '/docs/nope.md',
      '/etc/passwd',
      '/docs/guides/tools.md/..',
      '/docs/search.json',
    ]) {
      const refused = await call('get-doc-page', { path })
      assert.equal(refused.isError, true)
    }
  })
})
