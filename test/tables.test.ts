import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '..')

/** Tables that more than one module writes: the module that owns it, and the others, each with its reason. */
const WRITERS: Record<string, { owner: string; also: Record<string, string> }> = {
  audit_entries: { owner: 'control/audit', also: { 'core/writes': 'the outbox of every write' } },
  conversation_messages: {
    owner: 'conversation/dialog/messages',
    also: {
      'conversation/actors': 'a merge moves what names the actor',
      'conversation/sessions': 'a fork copies messages',
    },
  },
  conversation_turns: {
    owner: 'conversation/dialog/mailbox',
    also: {
      'conversation/actors': 'a merge moves what names the actor',
      'conversation/dialog/messages': 'deleted messages leave the turns that wait for them',
    },
  },
  conversations: {
    owner: 'conversation/dialog/messages',
    also: {
      'conversation/actors': 'a merge moves what names the actor',
      'conversation/sessions': 'a session is a conversation with more columns',
    },
  },
  deleted_conversations: {
    owner: 'conversation/dialog/messages',
    also: { 'conversation/actors': 'a merge moves what names the actor' },
  },
  deleted_messages: {
    owner: 'conversation/dialog/messages',
    also: { 'conversation/actors': 'a merge moves what names the actor' },
  },
  documents: {
    owner: 'content/documents',
    also: {
      'content/index/chunks': 'counts of chunks are columns of their document',
      'content/index/embeddings': 'so is the space of its vectors',
      'content/ingestion': 'so is how far its ingestion is',
    },
  },
  embedding_spaces: {
    owner: 'content/index/embeddings',
    also: { 'core/services': 'spaces have other numbers in the cell to which a project is moved' },
  },
  events: {
    owner: 'control/events',
    also: {
      'core/writes': 'the outbox of every write',
      'control/webhooks': 'an event carries its own dispatch',
    },
  },
  files: {
    owner: 'content/files',
    also: {
      'content/documents': 'the file behind a text is written with it',
      'execution/generations': 'files of traces',
    },
  },
  idempotency_keys: { owner: 'core/api', also: { 'control/retention': 'retention of core' } },
  ingestion_attempts: {
    owner: 'content/ingestion',
    also: { 'content/documents': 'another text supersedes an attempt, in the statement that writes it' },
  },
  knowledge_vectors: {
    owner: 'content/index/vectors',
    also: { 'content/index/embeddings': 'vectors that nothing refers to go with the space' },
  },
  project_keys: { owner: 'identity/keys', also: { 'identity/principals': 'use of keys is noted in batches' } },
  retained_envelopes: {
    owner: 'control/events',
    also: {
      'control/webhooks': 'goes with the last delivery that refers to it',
    },
  },
  session_frames: {
    owner: 'conversation/dialog/messages',
    also: { 'conversation/sessions': 'retention of what streams read' },
  },
  share_counters: {
    owner: 'execution/grants',
    also: { 'execution/shares': 'a share deletes what is past' },
  },
  share_usage: {
    owner: 'execution/grants',
    also: { 'execution/shares': 'a share deletes what is past' },
  },
  span_outbox: {
    owner: 'control/telemetry',
    also: {
      'core/writes': 'the outbox of every write',
      'execution/generations': 'content is erased in spans as in their turns',
    },
  },
  users: {
    owner: 'identity/users',
    also: {
      'core/services': 'copies in cells are compared with home',
      'identity/policies': 'a change of attachments makes tokens anew',
    },
  },
  webhook_deliveries: {
    owner: 'control/webhooks',
    also: { 'control/events': 'content is erased in deliveries as in their events' },
  },
  worker_heartbeats: { owner: 'core/work', also: { 'control/retention': 'retention of core' } },
}

const filesBelow = (folder: string, extension: string): string[] =>
  fs
    .readdirSync(path.join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter(file => file.endsWith(extension))
    .map(file => path.join(folder, file))

const read = (file: string) => fs.readFileSync(path.join(root, file), 'utf8')

/** The module of a file: a folder of an area, or of a folder that has nothing but folders, a module.ts and settings. */
function moduleOf(file: string): string {
  const parts = path.dirname(file).split(path.sep).slice(1)
  const beside = fs.readdirSync(path.join(root, 'src', ...parts.slice(0, 2)), { withFileTypes: true })
  const isDivided = beside.every(entry => entry.isDirectory() || ['module.ts', 'settings.ts'].includes(entry.name))
  return parts.slice(0, isDivided ? 3 : 2).join('/')
}

describe('tables', () => {
  const tables = new Set(
    filesBelow('sql', '.sql').flatMap(file =>
      [...read(file).matchAll(/^create (?:unlogged )?table (\w+)/gm)].map(([, name]) => name),
    ),
  )
  const dropped = filesBelow('sql', '.sql').flatMap(file =>
    [...read(file).matchAll(/^drop table (\w+)/gm)].map(([, name]) => name),
  )
  for (const name of dropped) tables.delete(name)

  /** Modules that write each table, by the text of their statements. */
  const writers = new Map<string, Set<string>>()
  for (const file of filesBelow('src', '.ts')) {
    const module = moduleOf(file)
    for (const [, name] of read(file).matchAll(/\b(?:insert into|update|delete from) (\w+)/g)) {
      if (!tables.has(name)) continue
      writers.set(name, (writers.get(name) ?? new Set()).add(module))
    }
  }

  it('are written by the module that owns them; exceptions have a reason', () => {
    const wrong: string[] = []
    for (const [table, found] of writers) {
      const modules = [...found].sort()
      const { owner, also } = WRITERS[table] ?? { owner: modules[0], also: {} }
      for (const module of modules) if (module !== owner && !(module in also)) wrong.push(`${module} writes ${table}`)
    }
    assert.deepEqual(wrong, [])
  })

  it('have no exception that is not needed', () => {
    const unused = Object.entries(WRITERS).flatMap(([table, { also }]) =>
      Object.keys(also)
        .filter(module => !writers.get(table)?.has(module))
        .map(module => `${module} does not write ${table}`),
    )
    assert.deepEqual(unused, [])
  })
})
