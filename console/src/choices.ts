import type { Actor, Agent, AiProvider, Client, Dataset, Guardrail, Orchestration, Tool } from '@muster/client'
import {
  listActors,
  listAgents,
  listAiProviders,
  listDatasets,
  listEventRegistry,
  listGuardrails,
  listOrchestrations,
  listTools,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api } from './api.ts'
import { visible } from './components/text.tsx'
import { type Operation, usePermissions } from './projects.ts'
import * as strings from './strings.ts'

/** An option of a form or a filter. */
export type Choice = { value: string; label: string }

type Named = { id: string; name: string | null }
type Args = { project_id: string; limit: number }
type Options = { signal: AbortSignal }

/** Records of a kind that a form offers, and whose names are known. */
const OFFERED = 100

/** Makes a hook that reads the records of one kind. */
export function choicesOf<Row extends Named>(
  kind: string,
  list: Operation & ((client: Client, args: Args, options: Options) => { page(): PromiseLike<{ data: Row[] }> }),
) {
  /** Reads the records of a project. `choices` is empty while they load, and undefined if they cannot be listed. */
  return (projectId: string) => {
    const mayList = usePermissions(projectId)(list)
    const query = useQuery<Row[]>({
      queryKey: [kind, projectId, 'all'],
      queryFn: async ({ signal }) =>
        (await list(api, { project_id: projectId, limit: OFFERED }, { signal }).page()).data,
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

export const useActors = choicesOf<Actor>('actors', listActors)
export const useAgents = choicesOf<Agent>('agents', listAgents)
export const useDatasets = choicesOf<Dataset>('datasets', listDatasets)
export const useGuardrails = choicesOf<Guardrail>('guardrails', listGuardrails)
export const useOrchestrations = choicesOf<Orchestration>('orchestrations', listOrchestrations)
export const useProviders = choicesOf<AiProvider>('ai-providers', listAiProviders)
export const useTools = choicesOf<Tool>('tools', listTools)

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
