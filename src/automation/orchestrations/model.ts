import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { kind, selectList, type Values } from '../../core/api/kind.ts'
import { createBody, patchBody, projectField, record } from '../../core/api/record.ts'
import { versionArchive } from '../../core/api/version-archive.ts'
import { sql } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { comparableGraph, type GraphDefinition, isSameText } from './definition.ts'
import { EdgeShape, NodeShape } from './fields.ts'
import { deleteUnmarked } from './store.ts'

export { type Edge, type GraphDefinition, NODE_TYPES, type Node, type NodeRetry, type NodeType } from './definition.ts'

/** An orchestration is a directed graph that starts, flows forward and ends. */

const anObject = z.record(z.string(), z.unknown())

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name to show'),
  description: z.string().max(2000).nullable().describe('What it does'),
  nodes: z.array(NodeShape).describe('Steps, at most 500'),
  edges: z.array(EdgeShape).describe('What follows what, at most 2,000'),
  state_schema: anObject.nullable().describe('JSON Schema of the state of runs, for readers; it is not enforced'),
  input_schema: anObject.nullable().describe('JSON Schema (draft 2020-12) that the input of a run has to satisfy'),
}

const label = z.string().trim().min(1).max(255).optional()
const version_label = label.describe('Label of the version that the write makes')

export const Orchestration = record('Orchestration', {
  ...fields,
  version: z.int().describe('Counts the changes of the graph, from 1'),
})

export const OrchestrationInput = createBody(
  'OrchestrationInput',
  { ...fields, version_label },
  ['name', 'nodes', 'edges'],
  {
    name: 'Refund',
    nodes: [
      {
        id: 'look_up',
        type: 'tool',
        tool_id: 'tool_01k5p3vd7r9hj2x8m4qcw6tz0e',
        input_mapping: { order_id: { var: 'input.order_id' } },
      },
      { id: 'decide', type: 'human', prompt: 'May this order be refunded?' },
    ],
    edges: [{ from: 'look_up', to: 'decide' }],
  },
)

export const OrchestrationPatch = patchBody('OrchestrationPatch', { ...fields, version_label })

/** What is validated without being written. */
export const ValidateGraphInput = z
  .strictObject({
    project_id: projectField.describe('Project in which what the graph names is looked up'),
    nodes: fields.nodes.optional(),
    edges: fields.edges.optional(),
    state_schema: fields.state_schema.optional(),
    input_schema: fields.input_schema.optional(),
  })
  .meta({
    id: 'OrchestrationValidateInput',
    example: { nodes: [{ id: 'look_up', type: 'tool', tool_id: 'tool_01k5p3vd7r9hj2x8m4qcw6tz0e' }], edges: [] },
  })

const Finding = z
  .object({
    code: z.string(),
    path: z.string().describe('Where it stands in the definition'),
    message: z.string(),
  })
  .meta({ id: 'Finding' })

export const GraphValidation = z
  .object({
    valid: z.boolean().describe('Whether there are no problems'),
    problems: z.array(Finding).describe('What refuses a write'),
    warnings: z.array(Finding).describe('What may be a mistake'),
  })
  .meta({ id: 'OrchestrationValidation' })

export const RestoreGraphInput = z
  .strictObject({ label: label.describe('Label of the new version; default `restored from v<n>`') })
  .meta({ id: 'OrchestrationRestoreInput' })

export const OrchestrationVersion = z
  .object({
    id: z.string(),
    orchestration_id: z.string(),
    version: z.int(),
    config: z.record(z.string(), z.unknown()).describe('The graph and its schemas as they stood'),
    label: z.string().nullable(),
    created_by: z.string().nullable().describe('User who wrote it; of a key its owner; null for a copy'),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'OrchestrationVersion' })

const hidden = { managed_by: z.string().nullable(), author: Author }
const Row = Orchestration.extend(hidden)
const typed = sql.type(Row)

const declared = kind({
  name: 'orchestration',
  prefix: 'orch',
  table: 'orchestrations',
  notFound: 'ORCHESTRATION_NOT_FOUND',
  missing: 'ORCHESTRATION_NOT_FOUND',
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Orchestration,
  hidden,
  events: ['created', 'updated', 'deleted'],
  /** Nothing that a path or a body names is one that another module drives its own work with. */
  find: (db, id, lock = false) =>
    db.maybeOne(typed`
      select ${selectList(Object.keys(Row.shape))} from orchestrations t
      where t.id = ${id} and t.managed_by is null ${lock ? sql.fragment`for update of t` : sql.fragment``}`),
})
export type OrchestrationRow = z.output<typeof Row>

/** The fields of a definition. */
export const graphFields = ['nodes', 'edges', 'state_schema', 'input_schema'] as const

export const orchestrationKind = {
  ...declared,
  /** One that is marked goes later. */
  async remove(tx: Tx, row: OrchestrationRow): Promise<void> {
    await deleteUnmarked(tx, row.id)
    tx.emit(declared, 'deleted', row)
  },
  /** The order of keys counts: those of a state_mapping apply in theirs. */
  changes(before: OrchestrationRow, after: OrchestrationRow): Values<OrchestrationRow> {
    const reordered = graphFields.filter(name => !isSameText(before[name], after[name]))
    const changes = reordered.map(name => [name, after[name]])
    return { ...declared.changes(before, after), ...Object.fromEntries(changes) }
  },
}

/** Every graph that orchestrations have had. */
export const orchestrationVersions = versionArchive({
  table: 'orchestration_versions',
  owner: 'orchestration_id',
  prefix: 'orch_ver',
  record: OrchestrationVersion,
  read: config => comparableGraph(config as GraphDefinition),
})
