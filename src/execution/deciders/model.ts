import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { RecordedFailure, raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import { createBody, patchBody, projectField, record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'
import { DecisionAnswer, Question, Questions } from './questions.ts'

const id = z.string().min(1).max(255)

const backend = {
  agent_id: id.nullable().describe('Agent without tools that answers; exactly one of agent_id and tool_id is set'),
  tool_id: id.nullable().describe('Tool that answers, of type http or pipeline'),
}

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  description: z.string().max(16_384).nullable().describe('What is decided'),
  ...backend,
  escalate_below: z
    .number()
    .min(0)
    .max(1)
    .nullable()
    .describe('A decision with an answer of less confidence files an exception; null for none'),
  questions: Questions,
}

const label = z.string().trim().min(1).max(255).optional()
const version_label = label.describe('Label of the version that the write makes')
const expected_version = z
  .int()
  .min(1)
  .optional()
  .describe('The write goes through only while the decider is at this version')

export const Decider = record('Decider', {
  ...fields,
  version: z.int().describe('Counts the changes of the questions, from 1'),
  questions: z.array(Question).describe('Questions that it answers'),
})

export const DeciderInput = createBody('DeciderInput', { ...fields, version_label }, ['name', 'questions'], {
  name: 'Refunds',
  questions: [{ type: 'predicate', name: 'is_angry', instructions: 'Is the customer angry?' }],
})

export const DeciderPatch = patchBody('DeciderPatch', { ...fields, version_label, expected_version })

export const DeciderVersion = z
  .object({
    id: z.string(),
    decider_id: z.string(),
    version: z.int(),
    config: z.record(z.string(), z.unknown()).describe('The questions as they stood'),
    label: z.string().nullable(),
    created_by: z.string().nullable().describe('User who wrote it; of a key its owner; null for a copy'),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'DeciderVersion' })

export const RestoreDeciderInput = z
  .strictObject({ label: label.describe('Label of the new version; default `restored from v<n>`') })
  .meta({ id: 'DeciderRestoreInput' })

export const DECISION_STATUSES = ['queued', 'running', 'completed', 'failed'] as const

export const Decision = record('Decision', {
  decider_id: z.string().nullable().describe('Null for an inline decision'),
  decider_version: z.int().nullable().describe('Version of the decider that was asked'),
  questions: z.array(Question).nullable().describe('Of an inline decision; those of a decider are in its version'),
  agent_id: z.string().nullable().describe('Agent that is asked'),
  tool_id: z.string().nullable().describe('Tool that is asked'),
  status: z.enum(DECISION_STATUSES),
  answers: z.array(DecisionAnswer).nullable().describe('In the order of the questions; null until it has completed'),
  answers_by_name: z.record(z.string(), DecisionAnswer).nullable().describe('The same by their names'),
  error: RecordedFailure.nullable(),
  generation_id: z.string().nullable().describe('Turn of the agent'),
  metadata: z.record(z.string(), z.unknown()).nullable(),
})

/** Whatever it is: what is wrong with it depends on what it looks like (input.ts). */
const input = z
  .unknown()
  .refine(value => value !== undefined, { message: 'is required', params: { code: 'REQUIRED' } })
  .describe(
    'What is decided about, at most 10 MiB: a text, messages of the user with texts and images, or any other JSON',
  )

const asked = {
  input,
  metadata: MetadataBag.nullish().describe('Data of your own, kept on the decision'),
  wait: z.boolean().nullish().describe('Answer once it has settled instead of at once'),
}

export const DecisionInput = z.strictObject(asked).meta({ id: 'DecisionInput' })

export const InlineDecisionInput = z
  .strictObject({
    project_id: projectField,
    questions: Questions,
    agent_id: backend.agent_id.optional(),
    tool_id: backend.tool_id.optional(),
    ...asked,
  })
  .meta({
    id: 'InlineDecisionInput',
    example: {
      questions: [{ type: 'predicate', name: 'is_angry', instructions: 'Is the customer angry?' }],
      input: { text: 'Where is my order?' },
      agent_id: 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e',
    },
  })

export const BatchInput = z
  .strictObject({
    inputs: z
      .array(z.strictObject({ input, metadata: asked.metadata }))
      .min(1)
      .max(50)
      .describe('What is decided about, 1 to 50 inputs of at most 10 MiB in all'),
  })
  .meta({ id: 'DecisionBatchInput' })

export const Batch = z.object({ data: z.array(Decision) }).meta({ id: 'DecisionBatch' })

export const deciderKind = kind({
  name: 'decider',
  prefix: 'dcd',
  table: 'deciders',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'agent', column: 'agent_id', on_delete: 'block' },
    { kind: 'tool', column: 'tool_id', on_delete: 'block' },
  ],
  record: Decider,
  hidden: { author: Author },
  events: ['created', 'updated', 'deleted'],
  unique: { deciders_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})
export type DeciderRow = z.output<typeof deciderKind.row>

export const decisionKind = kind({
  name: 'decision',
  prefix: 'dec',
  table: 'decisions',
  countKept: true,
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Decision,
  computed: {
    questions: sql.fragment`case when t.decider_id is null then t.asked end`,
    answers_by_name: sql.fragment`(
      select json_object_agg(a.value ->> 'name', a.value order by a.ordinality)
      from json_array_elements(t.answers) with ordinality a)`,
  },
  hidden: {
    /** The questions, whether of a decider or inline. */
    asked: z.array(Question),
    agent_version: z.int().nullable(),
  },
  events: ['completed', 'failed'],
  eventNotes: 'failed carries error',
})
export type DecisionRow = z.output<typeof decisionKind.row>

/** Announces decisions that have settled: the decision's id. */
export const DECISION_SETTLED_CHANNEL = 'muster_decisions'

export const isDecisionSettled = ({ status }: Pick<DecisionRow, 'status'>): boolean =>
  status === 'completed' || status === 'failed'

/** What is decided about outlives a change of the encryption key. */
export const sealedInputs = ['decision_inputs', 'decision_inputs_unlogged'].map(table =>
  sealedColumn({
    table,
    column: 'sealed',
    kind: 'decision_input',
    id: sql.fragment`decision_id`,
    project: sql.fragment`(select d.project_id from decisions d where d.id = decision_id)`,
  }),
)
