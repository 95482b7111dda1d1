import { z } from 'zod'
import { Author } from '#core/api/authors.ts'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'
import { Scorer, Scorers } from './scorers.ts'

/** An eval measures an agent on a dataset: its scorers score the agent's output for each item. */

const id = z.string().min(1).max(255)
const fractionInput = z.number().min(0).max(1).nullable()

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  agent_id: id.describe('ID of the agent to evaluate'),
  dataset_id: id.describe('ID of the dataset'),
  scorers: Scorers,
  pass_threshold: fractionInput.describe(
    'Minimum fraction of scored items that must pass for a run to pass. Null for no verdict.',
  ),
  max_error_rate: fractionInput.describe(
    'Maximum fraction of items that may end with an error for a run to pass. Null for no limit.',
  ),
  group_by: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe(
      'Metadata key of items to group results by; only text values of at most 255 characters form groups. Null for no groups.',
    ),
}

export const Eval = record('Eval', {
  ...fields,
  scorers: z.array(Scorer).describe('Scorers of the outputs'),
  revision: z.int().describe('Revision, starting at 1; incremented when a field that affects the verdict changes'),
})

export const EvalInput = createBody('EvalInput', fields, ['name', 'agent_id', 'dataset_id', 'scorers'], {
  name: 'Return answers',
  agent_id: 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e',
  dataset_id: 'dset_01k5p3vd7r9hj2x8m4qcw6tz0e',
  scorers: [{ type: 'exact_match' }],
})

export const EvalPatch = patchBody('EvalPatch', fields)

/** Fields that affect the verdict of a run. */
export const VERDICT_FIELDS = [
  'agent_id',
  'dataset_id',
  'scorers',
  'pass_threshold',
  'max_error_rate',
  'group_by',
] as const

export const evalKind = kind({
  name: 'eval',
  prefix: 'eval',
  table: 'evals',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'agent', column: 'agent_id', on_delete: 'force' },
    { kind: 'dataset', column: 'dataset_id', on_delete: 'cascade' },
    { kind: 'ai_provider', column: 'ai_provider_ids', many: true, on_delete: 'block' },
  ],
  record: Eval,
  hidden: { ai_provider_ids: z.array(z.string()), inherits_route: z.boolean(), author: Author },
  events: ['created', 'updated', 'deleted'],
  unique: { evals_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})
export type EvalRow = z.output<typeof evalKind.row>
