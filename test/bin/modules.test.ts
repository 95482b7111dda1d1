import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { policyCatalogue } from '#core/api/catalogue.ts'
import { kinds } from '#core/api/kind.ts'
import { operations } from '#core/api/operation.ts'
import { extensionPoint, listExtensionPoints } from '#core/base/declarations.ts'
import { declaredNames, loadModules, type Module, module } from '#core/modules/module.ts'
import { workQueue } from '#core/queues/queue.ts'
import { modules } from '#modules.ts'
import { testEnvironment } from '../support/environment.ts'
import { loadBeside } from '../support/modules.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'

const root = path.resolve(import.meta.dirname, '../..')

/** Extension points whose one contributor is in the same area, and why it is not called: its uses of earlier folders. */
const WITHIN_AREA: Record<string, string> = {
  'approval desk': 'approvals resume turns',
  'case executions': 'executions change cases',
  'code sign-in': 'the sign-in of companies makes the tokens of users',
  'guardrail copies': 'guardrails refer to tools and agents',
  'resources of MCP': 'the conformance suite adds resources',
  'run drivers': 'executions start runs',
  'stalled ingestion': 'ingestion writes documents',
  'tool gate': 'guardrails refer to tools, and may call them',
  'tools of MCP': 'the conformance suite adds tools',
  'turn completion hooks': 'memory rules start turns',
  'waiters for firings': 'tasks fire triggers',
}

const sources = globSync('src/**/*.ts', { cwd: root }).map(file => ({
  folder: path.dirname(file).replace(/^src\//, ''),
  text: readFileSync(path.join(root, file), 'utf8'),
}))

describe('modules', () => {
  let database: Awaited<ReturnType<typeof cloneTemplate>>
  const processes: TestProcess[] = []
  before(async () => {
    loadModules(modules)
    database = await cloneTemplate()
  })
  after(async () => {
    await Promise.all(processes.map(process => process.kill()))
    await database.drop()
  })

  it('are the same to web, worker and command line', async () => {
    const here = declaredNames()
    for (const [what, names] of Object.entries(here)) assert.ok(names.length > 0, what)
    for (const kind of ['web', 'worker'] as const) {
      const process = await startProcess(kind, database.url, { LOG_LEVEL: 'debug' })
      processes.push(process)
      const line = process.output.find(text => text.includes('"modules loaded"')) as string
      const { level: _level, time: _time, process: _process, msg: _msg, ...known } = JSON.parse(line)
      assert.deepEqual(known, here, kind)
    }
    const listed = spawnSync(process.execPath, ['bin/muster.ts', 'modules', '--json'], {
      cwd: root,
      env: { PATH: process.env.PATH, HOME: process.env.HOME, ...testEnvironment(database.url) },
      encoding: 'utf8',
    })
    assert.deepEqual(JSON.parse(listed.stdout), { ...here, extension_points: listExtensionPoints() })
  })

  it('contribute to every extension point, which states its file and its purpose', () => {
    const points = listExtensionPoints()
    const declared = sources.flatMap(({ folder, text }) => [
      ...[...text.matchAll(/=\s+extensionPoint<[\s\S]*?\(\{\s*name: '(.+)',\s*folder: '(.+)',/g)].map(
        ([, name, named]) => {
          assert.equal(named, folder, name)
          return name
        },
      ),
      ...[...text.matchAll(/= waiters<\w+>\('(.+)', '(.+)'\)/g)].map(([, awaited, named]) => {
        assert.equal(named, folder, awaited)
        return `waiters for ${awaited}`
      }),
    ])
    const written = sources.flatMap(({ text }) => [...text.matchAll(/=\s+(extensionPoint|waiters)</g)])
    assert.equal(declared.length, written.length - 1, 'the declaration in waiters itself has no name yet')
    assert.deepEqual(points.map(({ name }) => name).toSorted(), declared.toSorted())
    for (const { name, description } of points) assert.match(description, /^[A-Z][a-z]+,? .{10,}[^.]$/, name)
  })

  it('are reached by an extension point only where a call would go upward', () => {
    const areaOf = new Map(
      sources.flatMap(({ folder, text }) =>
        [...text.matchAll(/^export default module\('(.+)',/gm)].map(([, name]) => [name, folder.split('/')[0]]),
      ),
    )
    const within = listExtensionPoints().filter(
      ({ folder, contributors }) => contributors.length === 1 && areaOf.get(contributors[0]!) === folder.split('/')[0],
    )
    assert.deepEqual(within.map(({ name }) => name).toSorted(), Object.keys(WITHIN_AREA).toSorted())
  })

  it('stop the start when a name is declared twice or refers to a kind that is not there', () => {
    const refuses = (parts: Omit<Module, 'name'>, message: RegExp) => {
      assert.throws(() => loadModules([...modules, module('of a test', parts)]), message)
      loadModules(modules)
    }
    const actor = kinds.get('actor')
    refuses({ kinds: [actor] }, /kind actor is declared twice/)
    refuses({ operations: [operations.get('getActor')] }, /operation getActor is declared twice/)
    refuses({ errors: { ACTOR_NOT_FOUND: { status: 400, description: 'again' } } }, /error code ACTOR_NOT_FOUND/)
    const references = [{ kind: 'dragon', column: 'dragon_id', on_delete: 'null' as const }]
    refuses({ kinds: [{ ...actor, name: 'knight', events: [], references }] }, /kind dragon is not declared/)
    const queue = workQueue('test.twice', { message: operations.get('createActor').body as never, concern: 'snapshot' })
    const handler = { queue, handle: async () => {} }
    refuses({ handlers: [handler, handler] }, /queue test.twice is declared twice/)
    const mounts = extensionPoint({ name: 'mounts', folder: 'test/bin', description: 'Is called like another point' })
    refuses({ extensions: [mounts.with(1)] }, /extension point mounts is declared twice/)
  })

  it('make an unknown kind an error', () => {
    assert.throws(() => kinds.get('dragon'), /kind dragon is not declared by any module/)
    assert.equal(kinds.find('dragon'), undefined)
  })

  it('add actions and types to the names that policies accept', () => {
    const catalogue = policyCatalogue(operations.all())
    const unload = loadBeside({
      policyActions: [{ action: 'tests:Run', description: 'x', resource_type: null }],
      policyTypes: ['dragon'],
    })
    const extended = policyCatalogue(operations.all())
    assert.ok(extended.actions.get('tests')?.has('Run'))
    assert.ok(extended.types.has('dragon'))
    unload()
    assert.equal(catalogue.actions.get('tests'), undefined)
    assert.ok(!catalogue.types.has('dragon'))
    assert.ok(catalogue.types.has('knowledge'))
  })
})
