import { isDeepStrictEqual } from 'node:util'
import { containsFilter, equalsFilter } from '#core/api/filters.ts'
import type { Operation } from '#core/api/operation.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { checkEval, requireDataset } from './check.ts'
import { EvalInput, EvalPatch, type EvalRow, evalKind, VERDICT_FIELDS } from './model.ts'

const evals = resource(evalKind, { path: '/evals', tag: 'Evals', module: 'evaluations' })

const WRITE_ACTION = 'evaluations:CreateEval'

/** Runs use the permissions of the principal that starts them, so the author needs these permissions too. */
const REQUIRED_ACTIONS = [
  'agents:CreateAgentGeneration',
  'tools:CallTool',
  'deciders:CreateDecision',
  'evaluations:GetDataset',
]

const errors = ['AGENT_NOT_FOUND', 'TOOL_NOT_FOUND', 'AI_PROVIDER_NOT_FOUND', 'NAME_CONFLICT'] as const

const differs = (before: EvalRow, after: EvalRow, names: readonly (keyof EvalRow)[]): boolean =>
  names.some(name => !isDeepStrictEqual(before[name], after[name]))

/** Fields that determine which items, and which of their data, results and scorers expose. */
const EXPOSURE_FIELDS = ['agent_id', 'dataset_id', 'scorers', 'group_by'] as const

const change = {
  action: WRITE_ACTION,
  description:
    'Omitted fields are unchanged. Scorers are checked again if they, the agent or the dataset change; read permission on the dataset is checked if the agent, the dataset, the scorers or the grouping change. Active runs are not affected.',
  alsoActions: REQUIRED_ACTIONS,
  body: EvalPatch,
  raises: [...errors],
  check: async (next: EvalRow, { stored, tx, allow }: any): Promise<void> => {
    if (differs(stored, next, EXPOSURE_FIELDS))
      await requireDataset({ tx, allow, project: next.project_id }, next.dataset_id)
  },
  change: async (next: EvalRow, { stored, tx, services, allow }: any): Promise<EvalRow> => {
    const changed = { ...next }
    if (differs(stored, next, VERDICT_FIELDS)) changed.revision = stored.revision + 1
    if (!differs(stored, next, ['agent_id', 'dataset_id', 'scorers'])) return changed
    return { ...changed, ...(await checkEval({ tx, services, allow, project: stored.project_id }, next)) }
  },
}

export const evalOperations: Operation[] = [
  evals.create({
    action: WRITE_ACTION,
    description:
      'Requires permission to use the agent, the tools and the deciders, and to read the dataset, because runs call them and results contain its items.',
    alsoActions: REQUIRED_ACTIONS,
    body: EvalInput,
    raises: [...errors],
    check: ({ tx, allow, project, body }) => requireDataset({ tx, allow, project }, body.dataset_id),
    async make({ tx, services, allow, body, project, caller }) {
      const { project_id: _, pass_threshold = null, max_error_rate = null, group_by = null, ...input } = body
      const references = await checkEval({ tx, services, allow, project }, input)
      const limits = { pass_threshold, max_error_rate, group_by }
      const author = principalRecord(caller)
      return evalKind.insert(tx, { ...input, ...references, ...limits, author, project_id: project })
    },
  }),
  // evals_project serves the order, evals_agent and evals_dataset their filters.
  evals.list({
    filters: {
      agent_id: equalsFilter('agent_id'),
      dataset_id: equalsFilter('dataset_id'),
      name: containsFilter('name'),
    },
  }),
  evals.get(),
  evals.update({ ...change, method: 'put', id: 'putEval' }),
  evals.update(change),
  evals.adopt({ action: WRITE_ACTION }),
  evals.remove({ description: 'Deletes its runs and results. Active runs end.' }),
]
