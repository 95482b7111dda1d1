import type {
  Actor,
  Agent,
  AiProvider,
  Dataset,
  Eval,
  Formation,
  Guardrail,
  Orchestration,
  Playbook,
  Tool,
} from '@muster/client'
import {
  listActors,
  listAgents,
  listAiProviders,
  listDatasets,
  listEvals,
  listEventRegistry,
  listFormations,
  listGuardrails,
  listOrchestrations,
  listPlaybooks,
  listTools,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api } from './api.ts'
import { visible } from './components/text.tsx'
import { usePermissions } from './projects.ts'
import * as strings from './strings.ts'

/** An option of a form or a filter. */
export type Choice = { value: string; label: string }

type Named = { id: string; name: string | null }
type Args = { project_id: string; limit: number }

/** Records of a kind that a form offers, and whose names are known. */
const OFFERED = 100

/** Makes a hook that reads the records of one kind. */
function choicesOf<Row extends Named>(
  kind: string,
  action: string,
  read: (args: Args, options: { signal: AbortSignal }) => PromiseLike<{ data: Row[] }>,
) {
  /** Reads the records of a project. `choices` is empty while they load, and undefined if they cannot be listed. */
  return (projectId: string) => {
    const mayList = usePermissions(projectId)(action)
    const query = useQuery<Row[]>({
      queryKey: [kind, projectId, 'all'],
      queryFn: async ({ signal }) => (await read({ project_id: projectId, limit: OFFERED }, { signal })).data,
      enabled: mayList === true,
      staleTime: 10_000,
    })
    const options = (query.data ?? []).map(({ id, name }) => ({
      value: id,
      label: visible(name ?? strings.agents.unnamed),
    }))
    const choices: Choice[] | undefined = mayList === false || (query.error && !query.data) ? undefined : options
    return {
      query,
      rows: query.data,
      choices,
      /** Returns the name of a record; its ID where the name is not known. */
      nameOf: (id: string): string => options.find(({ value }) => value === id)?.label ?? visible(id),
    }
  }
}

export const useActors = choicesOf<Actor>('actors', 'actors:ListActors', (args, options) =>
  listActors(api, args, options).page(),
)
export const useAgents = choicesOf<Agent>('agents', 'agents:ListAgents', (args, options) =>
  listAgents(api, args, options).page(),
)
export const useDatasets = choicesOf<Dataset>('datasets', 'evaluations:ListDatasets', (args, options) =>
  listDatasets(api, args, options).page(),
)
export const useEvals = choicesOf<Eval>('evals', 'evaluations:ListEvals', (args, options) =>
  listEvals(api, args, options).page(),
)
export const useFormations = choicesOf<Formation>('formations', 'formations:ListFormations', (args, options) =>
  listFormations(api, args, options).page(),
)
export const useGuardrails = choicesOf<Guardrail>('guardrails', 'guardrails:ListGuardrails', (args, options) =>
  listGuardrails(api, args, options).page(),
)
export const useOrchestrations = choicesOf<Orchestration>(
  'orchestrations',
  'orchestrations:ListOrchestrations',
  (args, options) => listOrchestrations(api, args, options).page(),
)
export const usePlaybooks = choicesOf<Playbook>('playbooks', 'playbooks:ListPlaybooks', (args, options) =>
  listPlaybooks(api, args, options).page(),
)
export const useProviders = choicesOf<AiProvider>('ai-providers', 'ai-providers:ListAiProviders', (args, options) =>
  listAiProviders(api, args, options).page(),
)
export const useTools = choicesOf<Tool>('tools', 'tools:ListTools', (args, options) =>
  listTools(api, args, options).page(),
)

/** Returns the patterns of events that webhooks and triggers may name. */
export function useEventPatterns(isNeeded = true): string[] {
  const { data = [] } = useQuery({
    queryKey: ['event-registry'],
    queryFn: async ({ signal }) => listEventRegistry(api, {}, { signal }).all(),
    staleTime: Number.POSITIVE_INFINITY,
    enabled: isNeeded,
  })
  return data.flatMap(({ prefix, events }) => [`${prefix}*`, ...events.map(({ name }) => name)])
}
