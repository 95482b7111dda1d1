import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { MetadataBag } from '#core/api/metadata.ts'
import { record } from '#core/api/record.ts'
import { ToolContextInput } from '#core/api/tool-context.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { sql } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { WorkAttempt } from '#core/work/attempt.ts'
import type { Question } from '#execution/deciders/questions.ts'
import { type ItemTurnMessage, resultMessages } from '../datasets/model.ts'
import { Scorer } from '../evals/scorers.ts'

/** An eval run executes one version of an agent on every item of a dataset and scores the outputs. */

const id = z.string().min(1).max(255)
const time = z.iso.datetime().nullable()
const jsonObject = z.record(z.string(), z.unknown())

export const EVAL_RUN_STATUSES = ['queued', 'running', 'completed', 'failed', 'canceled'] as const

const runFields = {
  eval_id: z.string(),
  eval_revision: z.int().describe('Revision of the eval at the start'),
  agent_version: z.int().describe('Agent version for all items'),
  decider_versions: z
    .record(z.string(), z.int())
    .nullable()
    .describe('Pinned versions of deciders, by scorer name. Null without decider scorers.'),
  status: z.enum(EVAL_RUN_STATUSES),
  baseline_run_id: z.string().nullable().describe('ID of the run used as baseline'),
  trigger_id: z.string().nullable().describe('ID of the trigger that started the run'),
  aggregate_scores: jsonObject.nullable().describe('Aggregated scores. Null until the run is completed.'),
  passed: z
    .boolean()
    .nullable()
    .describe('Whether the run passed. Null without a threshold and until the run is completed.'),
  item_count: z.int().describe('Number of items'),
  completed_count: z.int().describe('Number of scored items'),
  errored_count: z.int().describe('Number of items that ended with an error; excluded from aggregated scores'),
  metadata: jsonObject.nullable(),
  error: RecordedFailure.nullable().describe('Reason for the failure. Null unless failed.'),
  started_at: time,
  finished_at: time,
}

export const EvalRun = record('EvalRun', runFields, { project: false, updated: false })

export const EvalRunInput = z
  .strictObject({
    wait: z
      .boolean()
      .nullish()
      .describe(
        'Whether to wait until the run ends, for at most SYNC_WAIT_SECONDS. Allowed for at most EVAL_SYNC_ITEM_CAP items. Default false.',
      ),
    agent_version: z
      .int()
      .min(1)
      .nullish()
      .describe('Agent version. Default the stable version of the active release, or the current version without one.'),
    baseline_run_id: id.nullish().describe('ID of an ended run of the same eval to compare with'),
    metadata: MetadataBag.nullish().describe('Custom data of the run'),
    tool_context: ToolContextInput.nullish().describe('Keys and values sent as headers with tool calls'),
  })
  .meta({ id: 'EvalRunInput' })

/** Version, questions and backend of a decider at the start of a run. */
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
  scorer: z.string().describe('Name of the scorer, or its type for scorers without a name'),
  score: z.number().describe('Score from 0 to 1'),
  passed: z.boolean().describe('Whether the output passed'),
  reasoning: z.string().optional().describe('Explanation by the model or tool'),
  decision_id: z.string().optional().describe('ID of the decision'),
})
export type Score = z.output<typeof Score>

export const EvalResult = record(
  'EvalResult',
  {
    eval_run_id: z.string(),
    dataset_item_id: z.string().nullable().describe('ID of the dataset item. Null after its deletion.'),
    input: resultMessages.describe(
      'Input at the start of the run. Empty after the content of its end user was erased.',
    ),
    expected_output: z.string().nullable(),
    generation_id: z.string().nullable().describe('ID of the generation. Null if none was created.'),
    output: z.string().nullable().describe('Output of the agent. Null without one and after it was purged.'),
    scores: z.array(Score).describe('Scores in the order of the scorers. Empty if the item ended with an error.'),
    passed: z.boolean().describe('Whether the output passed every scorer'),
    error: RecordedFailure.nullable(),
  },
  { project: false, updated: false },
)

/** A queued item without a turn is to be executed, with one to be scored. */
export const RESULT_STATES = ['queued', 'running', 'asked', 'done'] as const

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
  hidden: { project_id: z.string(), item_id: z.string(), state: z.enum(RESULT_STATES) },
})
export type EvalResultRow = z.output<typeof evalResultKind.row>

/** An unsettled item with the data of its run. */
export const OpenItem = z.object({
  id: z.string(),
  project_id: z.string(),
  eval_run_id: z.string(),
  item_id: z.string(),
  state: z.enum(RESULT_STATES),
  input: z.custom<ItemTurnMessage[]>(),
  expected_output: z.string().nullable(),
  metadata: jsonObject.nullable(),
  generation_id: z.string().nullable(),
  content_mode: z.enum(['full', 'none']),
  output: z.string().nullable(),
  object: z.unknown(),
  /** Stored scores and decisions of scorers with a cost. */
  scores: z.array(Score.partial().required({ scorer: true })),
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
})
export type OpenItem = z.output<typeof OpenItem>
export type ItemAttempt = WorkAttempt<OpenItem, object>

/** Notification channel; the payload is the id of an ended run. */
export const RUN_CHANNEL = 'muster_eval_runs'
/** Notification channel; the payload is the id of an item that no longer waits for its turn. */
export const RESULT_CHANNEL = 'muster_eval_results'

export const isLive = ({ status }: Pick<EvalRunRow, 'status'>): boolean => status === 'queued' || status === 'running'

/** Permission required to start a run, checked again for every turn and scorer call on behalf of that principal. */
export const runPermission = (evalId: string) => ({ action: 'evaluations:RunEval', kind: 'eval', id: evalId })

/** Returns the row to which the sealed tool context of a run is bound. */
export const evalRunSeal = ({ id, project_id }: Pick<EvalRunRow, 'id' | 'project_id'>) => ({
  kind: 'eval_run_context',
  id,
  project_id,
})

export const sealedEvalRuns = [sealedColumn({ table: 'eval_runs', column: 'context', kind: 'eval_run_context' })]
