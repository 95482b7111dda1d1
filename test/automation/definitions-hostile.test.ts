import assert from 'node:assert/strict'
import { refused } from '../execution/tool-target.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { step } from './orchestration-support.ts'

const states = [{ name: 'open', initial: true }]
const calling = (tool_id: string) => ({ name: 'call', on_enter: { dispatch: { kind: 'tool', tool_id } } })

/** Each kind of definition: without references, another one, and with a call of a tool. */
const DEFINITIONS = {
  orchestrations: {
    plain: { nodes: [step('a')], edges: [] },
    other: (n: number) => ({ nodes: [step('a', { expression: `value ${n}` })] }),
    calls: (tool_id: string) => ({ nodes: [{ id: 'a', type: 'tool', tool_id }] }),
    hostile: (text: string) => ({ nodes: [step('a', { expression: text })] }),
  },
  workflows: {
    plain: { states, transitions: [] },
    other: (n: number) => ({ payload_schema: { title: `${n}` } }),
    calls: (tool_id: string) => ({ states: [...states, calling(tool_id)] }),
    hostile: (text: string) => ({ states: [{ ...states[0], note: text }] }),
  },
  playbooks: {
    plain: { steps: [{ key: 'a', title: 'a', type: 'manual' }] },
    other: (n: number) => ({ steps: [{ key: 'a', title: `${n}`, type: 'manual' }] }),
    calls: (tool_id: string) => ({ steps: [{ key: 'a', title: 'a', type: 'call_tool', tool_id }] }),
    hostile: (text: string) => ({ steps: [{ key: 'a', title: text, type: 'manual' }] }),
  },
}

for (const [plural, { plain, other, calls, hostile }] of Object.entries(DEFINITIONS))
  describe(`definitions of ${plural}`, () => {
    const noun = plural.slice(0, -1)
    const Noun = noun.replace(/^./, letter => letter.toUpperCase())
    const app = forSuite(startApp)
    const project = forSuite(() => app.projectWith([`${plural}:*`, 'tools:*']))
    let tool: string
    before(async () => {
      const reply = await project.key.post('/tools', {
        name: 'pays',
        execute: { method: 'GET', url: 'https://example.com/pay' },
      })
      tool = reply.body.id
    })

    let count = 0
    const make = async (fields: object = {}) => {
      const reply = await project.key.post(`/${plural}`, { name: `definition ${++count}`, ...plain, ...fields })
      assert.equal(reply.status, 201, JSON.stringify(reply.body))
      return { ...reply.body, path: `/${plural}/${reply.body.id}` }
    }
    const caller = (...actions: string[]) =>
      app.user(undefined, [{ statement: [{ effect: 'Allow', action: actions, resource: [`srn:${project.id}:*:*`] }] }])

    it('are made, changed and restored each by the right to it alone, and call tools by the right to that', async () => {
      const { path } = await make()
      const [maker, changer, restorer] = await Promise.all(
        ['Create', 'Update', 'Restore'].map(verb =>
          caller(`${plural}:${verb}${Noun}${verb === 'Restore' ? 'Version' : ''}`),
        ),
      )
      const body = { project_id: project.id, ...plain }
      assert.equal((await maker.post(`/${plural}`, { ...body, name: `by maker of ${noun}` })).status, 201)
      refused(await maker.post(`/${plural}`, { ...body, ...calls(tool), name: 'calls' }), 403, 'FORBIDDEN')
      refused(await maker.patch(path, { description: 'x' }), 403, 'FORBIDDEN')
      assert.equal((await changer.patch(path, other(1))).body.version, 2)
      refused(await changer.patch(path, calls(tool)), 403, 'FORBIDDEN')
      refused(await changer.post(`${path}/versions/1/restore`), 403, 'FORBIDDEN')
      refused(await restorer.patch(path, other(2)), 403, 'FORBIDDEN')
      assert.equal((await restorer.post(`${path}/versions/1/restore`)).body.version, 3)
      assert.equal((await project.key.patch(path, calls(tool))).body.version, 4)
      assert.equal((await project.key.patch(path, plain)).body.version, 5)
      refused(await restorer.post(`${path}/versions/4/restore`), 403, 'FORBIDDEN')
      assert.equal((await project.key.get(path)).body.version, 5)
    })

    it('number versions without gaps under concurrent changes and restores, and are deleted once during a concurrent delete', async () => {
      const { path } = await make()
      assert.equal((await project.key.patch(path, other(0))).body.version, 2)
      const work = (n: number) =>
        n % 2 ? project.key.post(`${path}/versions/1/restore`) : project.key.patch(path, other(n))
      const replies = await Promise.all(Array.from({ length: 12 }, (_, n) => work(n + 1)))
      assert.deepEqual([...new Set(replies.map(({ status }) => status))], [200])
      const { data } = (await project.key.get(`${path}/versions?limit=50`)).body
      const newest = (await project.key.get(path)).body.version
      assert.deepEqual(
        data.map(({ version }: any) => version),
        Array.from({ length: newest }, (_, n) => newest - n),
      )
      const beside = await Promise.all([
        ...Array.from({ length: 4 }, (_, n) => work(n + 20)),
        project.key.delete(path),
        project.key.get(`${path}/versions/compare`),
        ...Array.from({ length: 4 }, (_, n) => work(n + 30)),
      ])
      assert.deepEqual(
        beside.map(({ status }) => status).filter(status => ![200, 204, 404].includes(status)),
        [],
      )
      assert.equal((await project.key.get(`${path}/versions`)).status, 404)
    })

    it('are not found by another project, whatever the request', async () => {
      const { id, path } = await make()
      const code = (await (await app.projectWith([`${plural}:*`])).key.get(`/${plural}/nothing`)).body.error.code
      const { key } = await app.projectWith([`${plural}:*`])
      for (const reply of [
        await key.get(path),
        await key.patch(path, other(1)),
        await key.delete(path),
        await key.get(`${path}/versions`),
        await key.get(`${path}/versions/1`),
        await key.get(`${path}/versions/compare`),
        await key.post(`${path}/versions/1/restore`),
      ])
        refused(reply, 404, code)
      assert.equal((await key.get(`/${plural}?name=definition`)).body.total, 0)
      const own = await key.post(`/${plural}`, { name: 'own', ...plain })
      assert.equal((await key.get(`/${plural}/${own.body.id}/versions/1`)).status, 200)
      assert.equal((await project.key.get(`/${plural}/${id}`)).body.version, 1)
    })

    it('keep any text that can be kept, and refuse what cannot', async () => {
      const text = 'a\u202e\u0001 \u{1f9ea} é "\\ é'
      const { path } = await make({ name: `n ${text}`, ...hostile(text) })
      assert.ok(JSON.stringify((await project.key.get(path)).body).includes(JSON.stringify(text).slice(1, -1)))
      for (const bad of ['\u0000', '\ud800']) {
        refused(await project.key.patch(path, hostile(bad)), 400, 'VALIDATION_FAILED')
        refused(await project.key.patch(path, { name: `x${bad}` }), 400, 'VALIDATION_FAILED')
      }
      assert.equal((await project.key.get(path)).body.version, 1)
    })

    it('are cloned as their first version, with all that they reference', async () => {
      const source = await app.projectWith([`${plural}:*`, 'tools:*'])
      const pays = await source.key.post('/tools', {
        name: 'pays',
        execute: { method: 'GET', url: 'https://example.com/pay' },
      })
      const first = { name: 'copied', description: 'as it is', ...plain }
      const { id } = (await source.key.post(`/${plural}`, first)).body
      const original = (await source.key.patch(`/${plural}/${id}`, calls(pays.body.id))).body
      assert.equal(original.version, 2)
      const include = [plural, 'tools']
      const { ids, project: copied } = (await app.admin.post(`/projects/${source.id}/clone`, { name: 'copy', include }))
        .body
      const copy = (await app.admin.get(`/${plural}/${ids[id]}`)).body
      const text = JSON.stringify(original).replaceAll(pays.body.id, ids[pays.body.id])
      const { created_at, updated_at } = copy
      assert.deepEqual(copy, {
        ...JSON.parse(text),
        id: ids[id],
        project_id: copied.id,
        version: 1,
        created_at,
        updated_at,
      })
      const { data } = (await app.admin.get(`/${plural}/${ids[id]}/versions`)).body
      assert.deepEqual(
        data.map(({ version, created_by }: any) => [version, created_by]),
        [[1, null]],
      )
      const { data: events } = (await app.admin.get(`/events?project_id=${copied.id}&resource_id=${ids[id]}`)).body
      assert.deepEqual(
        events.map(({ event }: any) => event),
        [`${plural}.created`],
      )
    })
  })
