import assert from 'node:assert/strict'
import { newId } from '#core/base/ids.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import type { Reply } from '../support/app.ts'
import { processorMs } from '../support/event-loop.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'
import { startTools } from '../support/tools.ts'

describe('ingestion rules', () => {
  const tools = forSuite(startTools)
  const app = forSuite(() => startAgentApp({ workers: [] }))
  let tool: string

  before(async () => {
    tool = await tools.add(app, app.projectId)
  })

  let counter = 0
  const someGlob = () => `test/n${++counter}`
  const create = (fields: object = {}) =>
    app.key.post('/ingestion-rules', { content_type_glob: someGlob(), tool_id: tool, ...fields })
  const made = async (fields: object = {}) => {
    const { status, body } = await create(fields)
    assert.equal(status, 201, JSON.stringify(body))
    return body
  }
  const patch = (id: string, fields: object) => app.key.patch(`/ingestion-rules/${id}`, fields)
  /** The answer refuses with a code and names the fields at fault. */
  const refuses = ({ status, body }: Reply, code: string, ...paths: string[]) => {
    assert.deepEqual([status, body.error?.code], [400, code], JSON.stringify(body))
    if (paths.length > 0)
      assert.deepEqual(
        body.error.meta.problems.map((problem: { path: string }) => problem.path),
        paths,
      )
  }
  const invalid = (reply: Reply, ...paths: string[]) => refuses(reply, 'INGESTION_RULE_VALIDATION_FAILED', ...paths)
  const eventsOf = (id: string) => storedEvents(app.pool, { resource: id })

  describe('as records', () => {
    it('show every field, with the defaults of those that were not given', async () => {
      const { status, body } = await app.key.post('/ingestion-rules', { content_type_glob: 'Image/PNG', tool_id: tool })
      assert.equal(status, 201)
      const { id, created_at, updated_at, ...rest } = body
      assert.match(id, /^igr_/)
      assert.equal(created_at, updated_at)
      assert.deepEqual(rest, {
        project_id: app.projectId,
        enabled: true,
        content_type_glob: 'image/png',
        path_prefix: null,
        tool_id: tool,
        agent_id: null,
        action: null,
        preset_parameters: null,
        native_extraction: 'first',
        file_delivery: 'base64',
        chunk_strategy: null,
        chunk_unit: null,
        chunk_size: null,
        chunk_overlap: null,
        search_language: null,
        metadata: null,
      })
      assert.deepEqual((await app.key.get(`/ingestion-rules/${id}`)).body, body)
    })

    it('keep their fields unchanged, keys and values', async () => {
      const fields = {
        enabled: false,
        path_prefix: '/in//box/',
        preset_parameters: JSON.parse(
          '{ "Some_Key": 1, "__proto__": { "a": 1 }, "camelCase": { "Deep_Key": [null, "x"] } }',
        ),
        native_extraction: 'skip',
        file_delivery: 'download_url',
        chunk_strategy: 'size',
        chunk_unit: 'tokens',
        chunk_size: 300,
        chunk_overlap: 20,
        search_language: 'german',
        action: 'convert',
        metadata: JSON.parse('{ "Owner": "ops", "__proto__": 2 }'),
      }
      const body = await made(fields)
      for (const [name, value] of Object.entries(fields))
        assert.deepEqual(body[name], name === 'path_prefix' ? '/in/box' : value)
    })

    it('are listed newest first, page by page, for the requested project alone', async () => {
      const { id, key } = await app.project()
      const own = await tools.add(app, id)
      const ids: string[] = []
      for (const content_type_glob of ['a/1', 'a/2', 'a/3'])
        ids.unshift((await key.post('/ingestion-rules', { content_type_glob, tool_id: own })).body.id)
      const page = (await key.get('/ingestion-rules?limit=2')).body
      assert.deepEqual(
        [page.total, page.limit, page.data.map((row: { id: string }) => row.id)],
        [3, 2, ids.slice(0, 2)],
      )
      const rest = (await app.admin.get(`/ingestion-rules?project_id=${id}&limit=2&offset=2`)).body
      assert.deepEqual([rest.total, rest.data.map((row: { id: string }) => row.id)], [3, ids.slice(2)])
      refuses(await key.get('/ingestion-rules?limit=x'), 'VALIDATION_FAILED', 'limit')
      assert.equal((await key.get(`/ingestion-rules?project_id=${app.projectId}`)).status, 403)
    })

    it('change by PATCH and go by DELETE, with an event each', async () => {
      const rule = await made({ chunk_strategy: 'size', chunk_size: 500, metadata: { a: 1 } })
      const changed = await patch(rule.id, { chunk_size: null, metadata: null, native_extraction: 'skip' })
      assert.equal(changed.status, 200)
      assert.deepEqual(
        { ...changed.body, updated_at: null },
        { ...rule, chunk_size: null, metadata: null, native_extraction: 'skip', updated_at: null },
      )
      assert.ok(changed.body.updated_at >= rule.updated_at)
      const same = await patch(rule.id, { native_extraction: 'skip' })
      assert.deepEqual([same.status, same.body], [200, changed.body])
      assert.equal((await app.key.delete(`/ingestion-rules/${rule.id}`)).status, 204)
      assert.equal((await app.key.get(`/ingestion-rules/${rule.id}`)).status, 404)
      assert.equal((await app.key.delete(`/ingestion-rules/${rule.id}`)).status, 404)
      assert.equal((await patch(rule.id, { enabled: false })).status, 404)
      const events = await eventsOf(rule.id)
      assert.deepEqual(
        events.map(({ name }) => name),
        ['ingestion_rules.created', 'ingestion_rules.updated', 'ingestion_rules.deleted'],
      )
      assert.deepEqual(
        events.map(({ data }) => data),
        [rule, changed.body, changed.body],
      )
    })

    it('leave an audit entry under the action of each write', async () => {
      const rule = await made()
      await patch(rule.id, { enabled: false })
      await app.key.delete(`/ingestion-rules/${rule.id}`)
      const { body } = await app.admin.get(`/audit-log?project_id=${app.projectId}&limit=200`)
      const of = body.data.filter((entry: { resource_public_id: string }) => entry.resource_public_id === rule.id)
      assert.deepEqual(of.map((entry: { action: string }) => entry.action).sort(), [
        'ingestion-rules:CreateIngestionRule',
        'ingestion-rules:DeleteIngestionRule',
        'ingestion-rules:UpdateIngestionRule',
      ])
    })

    it('of another project are as if they did not exist', async () => {
      const rule = await made()
      const { key } = await app.project()
      for (const reply of [
        await key.get(`/ingestion-rules/${rule.id}`),
        await key.patch(`/ingestion-rules/${rule.id}`, { enabled: false }),
        await key.delete(`/ingestion-rules/${rule.id}`),
      ])
        assert.deepEqual([reply.status, reply.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    })

    it('need their own actions', async () => {
      const reader = await app.user(undefined, [
        {
          statement: [
            {
              effect: 'Allow',
              action: ['ingestion-rules:GetIngestionRule'],
              resource: [`srn:${app.projectId}:ingestion_rule:*`],
            },
          ],
        },
      ])
      const rule = await made()
      assert.equal((await reader.get(`/ingestion-rules/${rule.id}`)).status, 200)
      const project_id = app.projectId
      for (const reply of [
        await reader.get(`/ingestion-rules?project_id=${project_id}`),
        await reader.post('/ingestion-rules', { project_id, content_type_glob: 'a/b', tool_id: tool }),
        await reader.post('/ingestion-rules/resolve', { project_id, content_type: 'a/b' }),
        await reader.patch(`/ingestion-rules/${rule.id}`, { enabled: false }),
        await reader.delete(`/ingestion-rules/${rule.id}`),
      ])
        assert.deepEqual([reply.status, reply.body.error.code], [403, 'FORBIDDEN'])
    })
  })

  describe('are refused', () => {
    it('with both converters or neither', async () => {
      invalid(await create({ agent_id: app.agentId }), 'tool_id')
      invalid(await create({ tool_id: null }), 'tool_id')
      invalid(await create({ tool_id: undefined }), 'tool_id')
    })

    it('with a client tool, and with a tool of many operations and none named', async () => {
      invalid(await create({ tool_id: await tools.add(app, app.projectId, 'client') }), 'tool_id')
      const tool_id = await tools.add(app, app.projectId, 'platform')
      invalid(await create({ tool_id }), 'action')
      invalid(await create({ tool_id, action: null }), 'action')
      await made({ tool_id, action: 'convert' })
      await made({ tool_id: await tools.add(app, app.projectId, 'pipeline') })
    })

    it('with a glob that is no type/subtype', async () => {
      for (const glob of [
        'image',
        'image/',
        '/png',
        'image/png/x',
        'image/p_g',
        'image/p%g',
        'image/p g',
        ' image/png',
        'image/png;q=1',
        'ïmage/png',
        'image\\/png',
        'image/png\n',
      ])
        invalid(await create({ content_type_glob: glob }), 'content_type_glob')
      for (const glob of ['*/*', 'application/vnd.Some-Thing+XML', 'audio/*mp3', 'x.y+z-1*/**'])
        await made({ content_type_glob: glob })
    })

    it('with keys that the platform fills in', async () => {
      invalid(await create({ preset_parameters: { callback: {} } }), 'preset_parameters.callback')
      invalid(await create({ preset_parameters: { file: 1, a: 2 } }), 'preset_parameters.file')
      await made({ preset_parameters: { File: 1, call_back: 2, nested: { file: 3 } } })
    })

    it('with what only tools take, for an agent', async () => {
      const fields = { tool_id: null, agent_id: app.agentId }
      invalid(await create({ ...fields, preset_parameters: {} }), 'preset_parameters')
      invalid(await create({ ...fields, action: 'x' }), 'action')
      invalid(await create({ ...fields, file_delivery: 'download_url' }), 'file_delivery')
      const rule = await made({ ...fields, file_delivery: 'base64', preset_parameters: null })
      assert.deepEqual([rule.agent_id, rule.tool_id], [app.agentId, null])
    })

    it('with chunk settings that cannot be', async () => {
      const cases: [object, string][] = [
        [{ chunk_strategy: 'lines' }, 'chunk_strategy'],
        [{ chunk_unit: 'words' }, 'chunk_unit'],
        [{ chunk_size: 0 }, 'chunk_size'],
        [{ chunk_size: 100_001 }, 'chunk_size'],
        [{ chunk_size: 10.5 }, 'chunk_size'],
        [{ chunk_overlap: -1 }, 'chunk_overlap'],
        [{ chunk_size: 100, chunk_overlap: 100 }, 'chunk_overlap'],
        [{ chunk_strategy: 'auto', chunk_size: 100, chunk_overlap: 200 }, 'chunk_overlap'],
        [{ chunk_overlap: 1000 }, 'chunk_overlap'],
      ]
      for (const [fields, path] of cases) invalid(await create(fields), path)
      await made({ chunk_strategy: 'size', chunk_size: 100, chunk_overlap: 99 })
      await made({ chunk_size: 100_000, chunk_overlap: 99_999 })
    })

    it('with unknown values of closed lists', async () => {
      invalid(
        await create({ native_extraction: 'always', file_delivery: 'ftp', chunk_strategy: '' }),
        'native_extraction',
        'file_delivery',
        'chunk_strategy',
      )
    })

    it('with unknown properties and wrong types, as any request', async () => {
      const cases: [object, string][] = [
        [{ priority: 1 }, 'priority'],
        [{ content_type_glob: undefined }, 'content_type_glob'],
        [{ content_type_glob: 5 }, 'content_type_glob'],
        [{ content_type_glob: 'a/'.padEnd(256, 'x') }, 'content_type_glob'],
        [{ tool_id: 5 }, 'tool_id'],
        [{ enabled: null }, 'enabled'],
        [{ enabled: 'yes' }, 'enabled'],
        [{ native_extraction: null }, 'native_extraction'],
        [{ chunk_size: '100' }, 'chunk_size'],
        [{ preset_parameters: [] }, 'preset_parameters'],
        [{ preset_parameters: { a: 'x'.repeat(65_536) } }, 'preset_parameters'],
        [{ metadata: 'x' }, 'metadata'],
        [{ path_prefix: '../up' }, 'path_prefix'],
        [{ path_prefix: 7 }, 'path_prefix'],
        [{ id: 'igr_x' }, 'id'],
      ]
      for (const [fields, path] of cases) refuses(await create(fields), 'VALIDATION_FAILED', path)
    })

    it('when the converter is not of the project', async () => {
      const other = await app.project()
      for (const tool_id of [await tools.add(app, other.id), newId('tool'), 'x'])
        refuses(await create({ tool_id }), 'TOOL_NOT_FOUND')
      const provider = (
        await other.key.post('/ai-providers', {
          name: 'p',
          provider: 'custom',
          default_model: 'm',
          base_url: 'http://127.0.0.1:1/v1',
        })
      ).body.id
      const foreign = (await other.key.post('/agents', { name: 'a', ai_provider_id: provider })).body.id
      for (const agent_id of [foreign, newId('agent'), 'x', app.projectId])
        refuses(await create({ tool_id: null, agent_id }), 'AGENT_NOT_FOUND')
    })

    it('as the rule that a PATCH would leave', async () => {
      const rule = await made({ preset_parameters: { a: 1 } })
      invalid(await patch(rule.id, { agent_id: app.agentId }), 'tool_id', 'preset_parameters')
      invalid(await patch(rule.id, { tool_id: null }), 'tool_id')
      invalid(await patch(rule.id, { tool_id: null, agent_id: app.agentId }), 'preset_parameters')
      invalid(await patch(rule.id, { content_type_glob: 'nothing' }), 'content_type_glob')
      invalid(await patch(rule.id, { tool_id: await tools.add(app, app.projectId, 'platform') }), 'action')
      refuses(await patch(rule.id, { tool_id: newId('tool') }), 'TOOL_NOT_FOUND')
      refuses(await patch(rule.id, { content_type_glob: null }), 'VALIDATION_FAILED', 'content_type_glob')
      refuses(await patch(rule.id, { project_id: app.projectId }), 'VALIDATION_FAILED', 'project_id')
      assert.deepEqual((await app.key.get(`/ingestion-rules/${rule.id}`)).body, rule)
      const moved = await patch(rule.id, { tool_id: null, agent_id: app.agentId, preset_parameters: null })
      assert.deepEqual([moved.status, moved.body.tool_id, moved.body.agent_id], [200, null, app.agentId])
      const sized = await made({ chunk_size: 500, chunk_overlap: 100 })
      invalid(await patch(sized.id, { chunk_size: 100 }), 'chunk_overlap')
    })

    it('not for a converter that was lost, unless the PATCH names one', async () => {
      const tool_id = await tools.add(app, app.projectId, 'platform')
      const rule = await made({ tool_id, action: 'a' })
      await tools.remove(app, tool_id)
      assert.equal((await patch(rule.id, { enabled: false })).status, 200)
      refuses(await patch(rule.id, { action: 'b' }), 'TOOL_NOT_FOUND')
    })
  })

  describe('of one glob', () => {
    const conflicts = ({ status, body }: Reply, meta: object) =>
      assert.deepEqual([status, body.error?.code, body.error?.meta], [409, 'INGESTION_RULE_GLOB_CONFLICT', meta])

    it('are one a project and path prefix, whatever the case', async () => {
      const rule = await made({ content_type_glob: 'one/glob' })
      conflicts(await create({ content_type_glob: 'ONE/Glob' }), { content_type_glob: 'one/glob', path_prefix: null })
      conflicts(await create({ content_type_glob: 'one/glob', path_prefix: '/' }), {
        content_type_glob: 'one/glob',
        path_prefix: null,
      })
      await made({ content_type_glob: 'one/glob', path_prefix: '/a' })
      conflicts(await create({ content_type_glob: 'one/glob', path_prefix: '/b/../a/' }), {
        content_type_glob: 'one/glob',
        path_prefix: '/a',
      })
      const other = await app.project()
      const elsewhere = { content_type_glob: 'one/glob', tool_id: await tools.add(app, other.id) }
      assert.equal((await other.key.post('/ingestion-rules', elsewhere)).status, 201)
      const second = await made()
      conflicts(await patch(second.id, { content_type_glob: 'one/GLOB' }), {
        content_type_glob: 'one/glob',
        path_prefix: null,
      })
      assert.equal((await patch(rule.id, { content_type_glob: 'one/GLOB' })).status, 200)
    })

    it('created or changed concurrently end as one', async () => {
      for (let round = 0; round < 5; round++) {
        const content_type_glob = someGlob()
        const creates = await Promise.all([1, 2, 3, 4].map(() => create({ content_type_glob })))
        assert.deepEqual(creates.map(({ status }) => status).sort(), [201, 409, 409, 409])
        const rules = [await made(), await made(), await made()]
        const target = someGlob()
        const patches = await Promise.all(rules.map(({ id }) => patch(id, { content_type_glob: target })))
        assert.deepEqual(patches.map(({ status }) => status).sort(), [200, 409, 409])
      }
    })

    it('keep both of two concurrent changes to different fields', async () => {
      for (let round = 0; round < 10; round++) {
        const { id } = await made()
        const [metadata, native_extraction] = [{ round }, 'skip']
        const answers = await Promise.all([patch(id, { metadata }), patch(id, { native_extraction })])
        assert.deepEqual(
          answers.map(({ status }) => status),
          [200, 200],
        )
        const { body } = await app.key.get(`/ingestion-rules/${id}`)
        assert.deepEqual([body.metadata, body.native_extraction], [metadata, native_extraction])
      }
    })
  })

  describe('and their agents', () => {
    it('keep an agent that a rule names, by force too', async () => {
      const agent = await app.agent()
      const rule = await made({ tool_id: null, agent_id: agent })
      for (const query of ['', '?force=true']) {
        const { status, body } = await app.key.delete(`/agents/${agent}${query}`)
        assert.deepEqual([status, body.error.code], [409, 'AGENT_HAS_DEPENDENTS'])
        assert.deepEqual(body.error.meta, {
          counts: { ingestion_rules: 1 },
          sample_ids: { ingestion_rules: [rule.id] },
          forcible: false,
        })
      }
      assert.equal((await app.key.delete(`/ingestion-rules/${rule.id}`)).status, 204)
      assert.equal((await app.key.delete(`/agents/${agent}`)).status, 204)
    })

    it('never leave a rule without its agent, whatever a delete races with', async () => {
      for (let round = 0; round < 10; round++) {
        const agent = await app.agent()
        const [rule, deleted] = await Promise.all([
          create({ tool_id: null, agent_id: agent }),
          app.key.delete(`/agents/${agent}`),
        ])
        const pair = `${rule.status},${deleted.status}`
        assert.ok(pair === '201,409' || pair === '400,204', pair)
        if (rule.status === 400) assert.equal(rule.body.error.code, 'AGENT_NOT_FOUND')
      }
    })

    it('are deleted with a project that is deleted by force, and are counted when it is not', async () => {
      const { id, key } = await app.project()
      await key.post('/ingestion-rules', { content_type_glob: 'a/b', tool_id: await tools.add(app, id) })
      const refused = await app.admin.delete(`/projects/${id}`)
      assert.deepEqual([refused.status, refused.body.error.meta.counts], [409, { ingestion_rules: 1, tools: 1 }])
      assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
    })

    it('come along into a clone of the project when their converter does', async () => {
      const project = await app.project()
      const provider = { name: 'p', provider: 'custom', default_model: 'm', base_url: 'http://127.0.0.1:1/v1' }
      const ai_provider_id = (await project.key.post('/ai-providers', provider)).body.id
      const agent_id = (await project.key.post('/agents', { name: 'a', ai_provider_id })).body.id
      const own = await tools.add(app, project.id)
      const byAgent = (
        await project.key.post('/ingestion-rules', {
          content_type_glob: 'image/*',
          agent_id,
          path_prefix: '/scans',
          chunk_strategy: 'page',
        })
      ).body
      await project.key.post('/ingestion-rules', { content_type_glob: 'audio/*', tool_id: own })
      const clone = async (include: string[]) =>
        (await app.admin.post(`/projects/${project.id}/clone`, { name: 'copy', include })).body
      const { project: copy, ids } = await clone(['ingestion_rules', 'agents'])
      const { data } = (await app.admin.get(`/ingestion-rules?project_id=${copy.id}`)).body
      assert.deepEqual(data, [
        {
          ...byAgent,
          id: ids[byAgent.id],
          project_id: copy.id,
          agent_id: ids[agent_id],
          created_at: data[0].created_at,
          updated_at: data[0].updated_at,
        },
      ])
      assert.notEqual(ids[agent_id], agent_id)
      const alone = await clone(['ingestion_rules'])
      assert.equal((await app.admin.get(`/ingestion-rules?project_id=${alone.project.id}`)).body.total, 0)
    })
  })

  describe('resolving', () => {
    let key: typeof app.key
    let projectId: string
    const ids: Record<string, string> = {}
    const resolve = async (content_type: string, path?: string) =>
      (await key.post('/ingestion-rules/resolve', { content_type, path })).body
    const names = async (content_type: string, path?: string) => {
      const { rule_id } = await resolve(content_type, path)
      return rule_id === null ? null : Object.keys(ids).find(name => ids[name] === rule_id)
    }

    before(async () => {
      ;({ id: projectId, key } = await app.project())
      const own = await tools.add(app, projectId)
      const rules: [string, object][] = [
        ['*/*', {}],
        ['image/*', {}],
        ['image/png', {}],
        ['i*mage/*ti*f*', {}],
        ['image/x-*', {}],
        ['image/*-rare', {}],
        ['a*/*', {}],
        ['audio/m*', {}],
        ['audio/*3', {}],
        ['text/plain', { enabled: false }],
        ['/scans', { content_type_glob: '*/*', path_prefix: '/scans' }],
        ['/scans/new', { content_type_glob: 'image/*', path_prefix: '/scans/new' }],
        ['/50%_off', { content_type_glob: 'image/gif', path_prefix: '/50%_off' }],
      ]
      for (const [name, fields] of rules) {
        const made = await key.post('/ingestion-rules', { content_type_glob: name, tool_id: own, ...fields })
        assert.equal(made.status, 201, JSON.stringify(made.body))
        ids[name] = made.body.id
      }
    })

    it('prefers the glob with the fewest stars, then the longest, then the first in the alphabet', async () => {
      assert.equal(await names('image/png'), 'image/png')
      assert.equal(await names('image/jpeg'), 'image/*')
      assert.equal(await names('image/tiff'), 'image/*')
      assert.equal(await names('image/x-icon'), 'image/x-*')
      assert.equal(await names('image/x-rare'), 'image/*-rare')
      assert.equal(await names('application/zip'), 'a*/*')
      assert.equal(await names('audio/mp3'), 'audio/*3')
      assert.equal(await names('video/mp4'), '*/*')
    })

    it('ignores case and parameters', async () => {
      assert.equal(await names('Image/PNG; q="a;b"'), 'image/png')
      assert.equal(await names(' image/jpeg ;x=1'), 'image/*')
    })

    it('matches whole types and nothing but what a star stands for', async () => {
      assert.equal(await names('image/pngx'), 'image/*')
      assert.equal(await names('ximage/png'), '*/*')
      assert.equal(await names('nonsense'), null)
      assert.equal(await names('%'), null)
      assert.equal(await names('image\\png'), null)
    })

    it('passes over rules that are not enabled', async () => {
      assert.equal(await names('text/plain'), '*/*')
    })

    it('prefers the longest path prefix at or above the file, before any glob', async () => {
      assert.equal(await names('image/png', '/scans/a.png'), '/scans')
      assert.equal(await names('image/png', '/scans/new/a.png'), '/scans/new')
      assert.equal(await names('image/png', '/scans/new'), '/scans/new')
      assert.equal(await names('audio/mp3', '/scans/new/a.mp3'), '/scans')
      assert.equal(await names('image/png', '/scansnew/a.png'), 'image/png')
      assert.equal(await names('image/png', '/x/scans/a.png'), 'image/png')
      assert.equal(await names('image/gif', '/50%_off/a.gif'), '/50%_off')
      assert.equal(await names('image/gif', '/50xy_off/a.gif'), 'image/*')
    })

    it('says which types need no converter', async () => {
      for (const type of ['application/pdf', 'text/plain', 'Text/Markdown; charset=utf-8'])
        assert.equal((await resolve(type)).native, true)
      for (const type of ['text/html', 'image/png', 'application/pdfx'])
        assert.equal((await resolve(type)).native, false)
    })

    it('answers immediately for globs and types that were made to be slow', async () => {
      const { id, key: other } = await app.project()
      const own = await tools.add(app, id)
      const content_type_glob = `${'*a'.repeat(120)}/b`
      assert.equal((await other.post('/ingestion-rules', { content_type_glob, tool_id: own })).status, 201)
      const took = await processorMs(async () => {
        const { status, body } = await other.post('/ingestion-rules/resolve', {
          content_type: `${'a'.repeat(250)}/c`,
        })
        assert.deepEqual([status, body], [200, { rule_id: null, native: false }])
      })
      assert.ok(took < 1000, `${took} ms`)
    })

    it('answers under many concurrent requests', async () => {
      const asked = Array.from({ length: 60 }, () =>
        key.post('/ingestion-rules/resolve', { content_type: 'image/png' }),
      )
      for (const { status, body } of await Promise.all(asked))
        assert.deepEqual([status, body.rule_id], [200, ids['image/png']])
    })

    it('takes one project and one type', async () => {
      refuses(await key.post('/ingestion-rules/resolve', {}), 'VALIDATION_FAILED', 'content_type')
      refuses(await key.post('/ingestion-rules/resolve', { content_type: 5 }), 'VALIDATION_FAILED', 'content_type')
      refuses(await key.post('/ingestion-rules/resolve', { content_type: 'a/b', x: 1 }), 'VALIDATION_FAILED', 'x')
      refuses(
        await app.admin.post('/ingestion-rules/resolve', { content_type: 'a/b' }),
        'VALIDATION_FAILED',
        'project_id',
      )
      const named = await app.admin.post('/ingestion-rules/resolve', {
        project_id: projectId,
        content_type: 'image/png',
      })
      assert.deepEqual([named.status, named.body], [200, { rule_id: ids['image/png'], native: false }])
    })
  })
})
