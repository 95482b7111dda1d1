import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { commandsOf, workerCommands } from '#core/api/commands.ts'
import { type Operation, operations } from '#core/api/operation.ts'
import { loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'

/** Operations called with a token in its path, by machines. */
const WITHOUT = ['callOrchestrationRunHook', 'callTriggerHook', 'completeIngestionCallback', 'uploadFileWithToken']

describe('commands', () => {
  before(() => loadModules(modules))
  after(() => loadModules(modules))

  it('are listed in commands.txt, one line an operation: a line is never changed or dropped', () => {
    const kept = readFileSync(path.join(import.meta.dirname, 'commands.txt'), 'utf8')
      .trim()
      .split('\n')
    const now = workerCommands.all().map(({ id, words }) => `${id} ${words.join(' ')}`)
    assert.deepEqual(now.toSorted(), kept.toSorted())
  })

  it('belong to every operation except machine endpoints with tokens', () => {
    const named = new Set(workerCommands.all().map(({ id }) => id))
    const without = operations.all().filter(({ id }) => !named.has(id))
    assert.deepEqual(without.map(({ id }) => id).sort(), WITHOUT)
  })

  it('are one to four words, and none is another or begins it', () => {
    const all = workerCommands.all().map(({ words }) => words)
    for (const words of all) {
      assert.ok(words.length >= 1 && words.length <= 4, words.join(' '))
      for (const word of words) assert.match(word, /^[a-z][a-z0-9-]*$/)
    }
    const lines = all.map(words => `${words.join(' ')} `).sort()
    for (const [index, line] of lines.entries())
      assert.ok(!lines[index + 1]?.startsWith(line), `${line}begins ${lines[index + 1]}`)
  })

  const like = (id: string, more: Partial<Operation>): Operation => ({ ...operations.get('getActor'), id, ...more })

  it('follow from method and path, with -many where a verb is on items and on their collection', () => {
    const made = commandsOf([
      operations.get('listActors'),
      like('getSize', { path: '/actors/{actor_id}/size' }),
      like('wakeActor', { method: 'post', path: '/actors/{actor_id}/wake' }),
      like('wakeActors', { method: 'post', path: '/actors/wake' }),
      like('putActor', { method: 'put' }),
      like('findActors', { method: 'post', path: '/actors/find', command: ['actors', 'look-for'] }),
    ])
    assert.deepEqual(
      made.map(({ words }) => words.join(' ')),
      ['actors list', 'actors size', 'actors wake', 'actors wake-many', 'actors replace', 'actors look-for'],
    )
  })

  it('that collide, begin another, or are no words stop the start', () => {
    const loaded = operations.all()
    const refused = (extra: Operation, message: RegExp) => {
      assert.throws(() => commandsOf([...loaded, extra]), message)
      const more = { name: 'more', operations: [extra] }
      assert.throws(() => loadModules([...modules, more]), message)
    }
    refused(like('readActor', {}), /'actors get' of \w+ equals or is a prefix of/)
    refused(
      like('actorsGet', { command: ['actors', 'get', 'one'] }),
      /'actors get' of \w+ equals or is a prefix of a command of actorsGet/,
    )
    refused(like('actorsOf', { command: ['Actors'] }), /invalid command 'Actors'/)
    refused(like('actorsOf', { command: ['a', 'b', 'c', 'd', 'e'] }), /invalid command 'a b c d e'/)
  })
})
