import { z } from 'zod'
import { RecordedFailure } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import { record } from '../../core/api/record.ts'
import { ToolContextInput } from '../../core/api/tool-context.ts'
import { sql } from '../../core/db/sql.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'
import type { Question } from '../../execution/deciders/questions.ts'
import { askedMessages, type ItemTurnMessage } from '../datasets/model.ts'
import { Scorer } from '../evals/scorers.ts'

/** A run asks one version of an agent every item of a dataset and has the scorers judge the answers. */

const id = z.string().min(1).max(255)
const time = z.iso.datetime().nullable()
const anObject = z.record(z.string(), z.unknown())

export const EVAL_RUN_STATUSES = ['queued', 'running', 'completed', 'failed', 'canceled'] as const

const runFields = {
  eval_id: z.string(),
  eval_revision: z.int().describe('Revision of the eval that it was started with'),
  agent_version: z.int().describe('The one version of the agent that all items are asked of'),
  decider_versions: z
    .record(z.string(), z.int())
    .nullable()
    .describe('Versions of the deciders that were pinned, by the names of their scorers; null without such scorers'),
  status: z.enum(EVAL_RUN_STATUSES),
  baseline_run_id: z.string().nullable().describe('Run that it is compared with'),
  trigger_id: z.string().nullable().describe('Trigger that started it'),
  aggregate_scores: anObject.nullable().describe('What came of it; null until it has completed'),
  passed: z.boolean().nullable().describe('The verdict; null without a threshold and until it has completed'),
  item_count: z.int().describe('Items of the run'),
  completed_count: z.int().describe('Items that were scored'),
  errored_count: z.int().describe('Items that ended with an error; they are in no figure'),
  metadata: anObject.nullable(),
  error: RecordedFailure.nullable().describe('Why it failed'),
  started_at: time,
  finished_at: time,
}

export const EvalRun = record('EvalRun', runFields, { project: false, updated: false })

export const EvalRunInput = z
  .strictObject({
    wait: z
      .boolean()
      .nullish()
      .describe('Answer once the run has ended or SYNC_WAIT_SECONDS are over; for at most EVAL_SYNC_ITEM_CAP items'),
    agent_version: z
      .int()
      .min(1)
      .nullish()
      .describe('Version of the agent to ask; default the stable one of its release, else the live one'),
    baseline_run_id: id.nullish().describe('Run of the same eval, at its end, to compare with'),
    metadata: MetadataBag.nullish().describe('Data of your own, kept on the run'),
    tool_context: ToolContextInput.nullish().describe('Keys and values that calls of tools carry as headers'),
  })
  .meta({ id: 'EvalRunInput' })

/** Who a decider asks what, as it stood when the run began. */
export type PinnedDecider = {
  id: string
  version: number
  author: PrincipalRecord | null
  questions: Question[]
  agent_id: string | null
  tool_id: string | null
}

export const evalRunKind = kind({
  name: 'eval_run',
  prefix: 'evrun',
  table: 'eval_runs',
  references: [{ kind: 'eval', column: 'eval_id', on_delete: 'cascade' }],
  counted: false,
  record: EvalRun,
  hidden: {
    project_id: z.string(),
    agent_id: z.string(),
    scorers: z.array(Scorer),
    pass_threshold: z.number().nullable(),
    max_error_rate: z.number().nullable(),
    group_by: z.string().nullable(),
    deciders: z.custom<Record<string, PinnedDecider>>().nullable(),
    context: z.string().nullable(),
    authority: z.custom<PrincipalRecord>(),
    waited: z.boolean(),
    updated_at: z.string(),
  },
  events: ['completed', 'failed'],
  eventNotes: 'failed carries error; a run that was canceled emits nothing',
  authorize: ({ eval_id }) => ({ type: 'eval', id: eval_id }),
})
export type EvalRunRow = z.output<typeof evalRunKind.row>

export const Score = z.object({
  scorer: z.string().describe('Type of the scorer, or its name where the type may repeat'),
  score: z.number().describe('From 0 to 1'),
  passed: z.boolean().describe('Whether the answer reached the threshold'),
  reasoning: z.string().optional().describe('What the judge or the tool said of it'),
  decision_id: z.string().optional().describe('Decision that the score comes from'),
})
export type Score = z.output<typeof Score>

export const EvalResult = record(
  'EvalResult',
  {
    eval_run_id: z.string(),
    dataset_item_id: z.string().nullable().describe('Null once the item is deleted'),
    input: askedMessages.describe('The item as it was asked; empty once the content of its end user was erased'),
    expected_output: z.string().nullable(),
    generation_id: z.string().nullable().describe('The turn; null where none was made'),
    output: z.string().nullable().describe('What the agent answered; null where it did not, and once that is purged'),
    scores: z.array(Score).describe('In the order of the scorers; empty with an error'),
    passed: z.boolean().describe('Whether every scorer was passed'),
    error: RecordedFailure.nullable(),
  },
  { project: false, updated: false },
)

export const STATES = ['queued', 'asked', 'answered', 'done'] as const

export const evalResultKind = kind({
  name: 'eval_result',
  prefix: 'evres',
  table: 'eval_results',
  references: [{ kind: 'eval_run', column: 'eval_run_id', on_delete: 'cascade' }],
  counted: false,
  record: EvalResult,
  computed: {
    dataset_item_id: sql.fragment`(select i.id from dataset_items i where i.id = t.item_id)`,
    passed: sql.fragment`coalesce(t.passed, false)`,
    scores: sql.fragment`case when t.error is null then t.scores else '[]'::json end`,
  },
  hidden: { project_id: z.string(), item_id: z.string(), state: z.enum(STATES) },
})
export type EvalResultRow = z.output<typeof evalResultKind.row>

/** What a worker or a turn needs to know of an item and its run. */
export const OpenItem = z.object({
  id: z.string(),
  project_id: z.string(),
  eval_run_id: z.string(),
  item_id: z.string(),
  state: z.enum(STATES),
  input: z.custom<ItemTurnMessage[]>(),
  expected_output: z.string().nullable(),
  metadata: anObject.nullable(),
  generation_id: z.string().nullable(),
  content_mode: z.enum(['full', 'none']),
  output: z.string().nullable(),
  object: z.unknown(),
  /** What scorers that cost something have said already. */
  scores: z.array(Score.partial().required({ scorer: true })),
  claims: z.int(),
  run: z.custom<
    Pick<
      EvalRunRow,
      | 'id'
      | 'eval_id'
      | 'agent_id'
      | 'agent_version'
      | 'scorers'
      | 'deciders'
      | 'status'
      | 'context'
      | 'authority'
      | 'trigger_id'
      | 'project_id'
    >
  >(),
  paused: z.boolean(),
})
export type OpenItem = z.output<typeof OpenItem>

/** Carries the id of a run that has ended. */
export const RUN_CHANNEL = 'muster_eval_runs'
/** Carries the id of a result that is stored. */
export const RESULT_CHANNEL = 'muster_eval_results'

export const isLive = ({ status }: Pick<EvalRunRow, 'status'>): boolean => status === 'queued' || status === 'running'

/** What whoever starts a run has to be allowed, and still be when a turn or a scorer is asked in its name. */
export const runPermission = (evalId: string) => ({ action: 'evaluations:RunEval', kind: 'eval', id: evalId })

/** What binds the sealed tool context to its run. */
export const evalRunSeal = ({ id, project_id }: Pick<EvalRunRow, 'id' | 'project_id'>) => ({
  kind: 'eval_run_context',
  id,
  project_id,
})

export const sealedEvalRuns = [sealedColumn({ table: 'eval_runs', column: 'context', kind: 'eval_run_context' })]
