import type { Client } from '@muster/client'
import * as operations from '@muster/client/operations'
import type { Operation } from '#projects.ts'

/** A record that a field refers to, with the fields that name it. */
export type ReferencedRow = {
  id: string
  project_id?: string | null
  name?: string | null
  title?: string | null
  username?: string
  filename?: string
  external_id?: string | null
  path?: string | null
}

type Options = { signal: AbortSignal }

type Reference = {
  list: Operation &
    ((client: Client, args: any, options: Options) => { page(): PromiseLike<{ data: ReferencedRow[] }> })
  /** Reads a record, without its content. Null: there is none. */
  get: Operation & ((client: Client, args: any, options: Options) => PromiseLike<ReferencedRow | null>)
  /** Filter of the list by a part of the name; without one the first records are offered. */
  search?: string
  /** Whether the records belong to no project. */
  isGlobal?: boolean
}

/** Reads a document without its text. */
const findDocument: Reference['get'] = Object.assign(
  async (
    client: Client,
    { document_id: search, ...args }: { document_id: string; project_id: string },
    options: Options,
  ) =>
    (await operations.listDocuments(client, { ...args, search, include_withdrawn: true }, options).page()).data[0] ??
    null,
  { action: operations.listDocuments.action },
)

/** Kinds that forms choose records of. Fields refer to them by `x-refers` of the API's description. */
export const REFERENCES: Record<string, Reference> = {
  actor: { list: operations.listActors, get: operations.getActor, search: 'search' },
  agent: { list: operations.listAgents, get: operations.getAgent, search: 'name' },
  ai_provider: { list: operations.listAiProviders, get: operations.getAiProvider, search: 'name' },
  dataset: { list: operations.listDatasets, get: operations.getDataset, search: 'name' },
  decider: { list: operations.listDeciders, get: operations.getDecider, search: 'name' },
  document: { list: operations.listDocuments, get: findDocument, search: 'search' },
  eval: { list: operations.listEvals, get: operations.getEval, search: 'name' },
  file: { list: operations.listFiles, get: operations.getFile },
  formation: { list: operations.listFormations, get: operations.getFormation },
  guardrail: { list: operations.listGuardrails, get: operations.getGuardrail, search: 'name' },
  memory_store: { list: operations.listMemoryStores, get: operations.getMemoryStore, search: 'name' },
  model_route: { list: operations.listModelRoutes, get: operations.getModelRoute, search: 'name' },
  orchestration: { list: operations.listOrchestrations, get: operations.getOrchestration, search: 'name' },
  playbook: { list: operations.listPlaybooks, get: operations.getPlaybook, search: 'name' },
  policy: { list: operations.listPolicies, get: operations.getPolicy, search: 'name', isGlobal: true },
  secret: { list: operations.listSecrets, get: operations.getSecret, search: 'name' },
  tool: { list: operations.listTools, get: operations.getTool, search: 'name' },
  trigger: { list: operations.listTriggers, get: operations.getTrigger, search: 'name' },
  user: { list: operations.listUsers, get: operations.getUser, search: 'username', isGlobal: true },
  webhook: { list: operations.listWebhooks, get: operations.getWebhook },
  workflow: { list: operations.listWorkflows, get: operations.getWorkflow, search: 'name' },
}
