import { isDeepStrictEqual } from 'node:util'
import { containsFilter, equalsFilter } from '../../core/api/filters.ts'
import type { Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { checkEval, requireDataset } from './check.ts'
import { EvalInput, EvalPatch, type EvalRow, evalKind, JUDGED_BY } from './model.ts'

const evals = resource(evalKind, { path: '/evals', tag: 'Evals', module: 'evaluations' })

/** What writes an eval. */
const WRITES = 'evaluations:CreateEval'

/** What it asks is asked for in the name of who runs it, so whoever names it must be allowed to ask it, and to read what it shows. */
const RIGHTS = ['agents:CreateAgentGeneration', 'tools:CallTool', 'deciders:CreateDecision', 'evaluations:GetDataset']

const refusals = ['AGENT_NOT_FOUND', 'TOOL_NOT_FOUND', 'AI_PROVIDER_NOT_FOUND', 'NAME_CONFLICT'] as const

const differs = (before: EvalRow, after: EvalRow, names: readonly (keyof EvalRow)[]): boolean =>
  names.some(name => !isDeepStrictEqual(before[name], after[name]))

/** What decides which items, and what of them, results show and scorers see. */
const SHOWN_BY = ['agent_id', 'dataset_id', 'scorers', 'group_by'] as const

const change = {
  action: WRITES,
  description:
    'What is not given stays as it is. Scorers are checked again when they or the agent change, the right to read the dataset when what shows its items does. Runs that are under way go on as they were started.',
  alsoActions: RIGHTS,
  body: EvalPatch,
  raises: [...refusals],
  check: async (next: EvalRow, { stored, tx, allow }: any): Promise<void> => {
    if (differs(stored, next, SHOWN_BY)) await requireDataset({ tx, allow, project: next.project_id }, next.dataset_id)
  },
  change: async (next: EvalRow, { stored, tx, services, allow }: any): Promise<EvalRow> => {
    const changed = { ...next }
    if (differs(stored, next, JUDGED_BY)) changed.revision = stored.revision + 1
    if (!differs(stored, next, ['agent_id', 'dataset_id', 'scorers'])) return changed
    return { ...changed, ...(await checkEval({ tx, services, allow, project: stored.project_id }, next)) }
  },
}

export const evalOperations: Operation[] = [
  evals.create({
    action: WRITES,
    description:
      'Needs the rights to ask the agent, tools and deciders that it names, and to read the dataset: whoever may run the eval has them asked and sees the items.',
    alsoActions: RIGHTS,
    body: EvalInput,
    raises: [...refusals],
    check: ({ tx, allow, project, body }) => requireDataset({ tx, allow, project }, body.dataset_id),
    async make({ tx, services, allow, body, project, caller }) {
      const { project_id: _, pass_threshold = null, max_error_rate = null, group_by = null, ...given } = body
      const found = await checkEval({ tx, services, allow, project }, given)
      const limits = { pass_threshold, max_error_rate, group_by }
      const author = principalRecord(caller)
      return evalKind.insert(tx, { ...given, ...found, ...limits, author, project_id: project })
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
  evals.adopt({ action: WRITES }),
  evals.remove({ description: 'With its runs and results; runs that are under way end.' }),
]
