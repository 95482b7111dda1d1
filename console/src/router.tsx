import { createRootRoute, createRoute, createRouter } from '@tanstack/react-router'
import { Crashed } from './components/crashed.tsx'
import type { Filters } from './components/filters.ts'
import { onDemand } from './components/on-demand.tsx'
import { Loading, NotFound } from './components/states.tsx'
import { Home } from './shell/home.tsx'
import { Shell } from './shell/shell.tsx'

/** Addresses of the views. Each view is a separate chunk; its filters are part of its address. */

const root = createRootRoute({ component: Shell })
const home = createRoute({ getParentRoute: () => root, path: '/', component: Home })
const project = createRoute({ getParentRoute: () => root, path: '/p/$projectId' })

const view = <Path extends string>(path: Path, load: () => Promise<any>, component: string) =>
  createRoute({
    getParentRoute: () => project,
    path,
    component: onDemand(async () => (await load())[component]),
    validateSearch: (search: Filters): Filters => search,
  })

const views = [
  view('start', () => import('./views/project/start.tsx'), 'Start'),
  view('overview', () => import('./views/project/overview.tsx'), 'Overview'),
  view('agents', () => import('./views/execution/agents.tsx'), 'Agents'),
  view('agents/new', () => import('./views/execution/agent-form.tsx'), 'NewAgent'),
  view('agents/$agentId', () => import('./views/execution/agent.tsx'), 'AgentView'),
  view('playground', () => import('./views/execution/playground.tsx'), 'Playground'),
  view('tools', () => import('./views/execution/tools.tsx'), 'Tools'),
  view('tools/$toolId', () => import('./views/execution/tool.tsx'), 'ToolView'),
  view('guardrails', () => import('./views/execution/guardrails.tsx'), 'Guardrails'),
  view('guardrails/$guardrailId', () => import('./views/execution/guardrail.tsx'), 'GuardrailView'),
  view('deciders', () => import('./views/execution/deciders.tsx'), 'Deciders'),
  view('deciders/$deciderId', () => import('./views/execution/decider.tsx'), 'DeciderView'),
  view('deciders/$deciderId/decisions/$decisionId', () => import('./views/execution/decision.tsx'), 'DecisionView'),
  view('chats', () => import('./views/conversation/chats.tsx'), 'Chats'),
  view('chats/$chatId', () => import('./views/conversation/chat.tsx'), 'ChatView'),
  view('model-routes', () => import('./views/execution/model-routes.tsx'), 'ModelRoutes'),
  view('model-routes/$routeId', () => import('./views/execution/model-route.tsx'), 'ModelRouteView'),
  view('files', () => import('./views/content/files.tsx'), 'Files'),
  view('files/$fileId', () => import('./views/content/file.tsx'), 'FileView'),
  view('documents', () => import('./views/content/documents.tsx'), 'Documents'),
  view('documents/$documentId', () => import('./views/content/document.tsx'), 'DocumentView'),
  view('search', () => import('./views/content/search.tsx'), 'Search'),
  view('ingestion-rules', () => import('./views/content/ingestion-rules.tsx'), 'IngestionRules'),
  view('ingestion-rules/$ruleId', () => import('./views/content/ingestion-rule.tsx'), 'IngestionRuleView'),
  view('metadata-schemas', () => import('./views/content/metadata-schemas.tsx'), 'MetadataSchemas'),
  view('metadata-schemas/$schemaId', () => import('./views/content/metadata-schema.tsx'), 'MetadataSchemaView'),
  view('memory', () => import('./views/memory/memory.tsx'), 'Memory'),
  view('memory/$storeId', () => import('./views/memory/memory-store.tsx'), 'MemoryStoreView'),
  view('memory/$storeId/$memoryId', () => import('./views/memory/memory-fact.tsx'), 'MemoryFactView'),
  view('sessions', () => import('./views/conversation/sessions.tsx'), 'Sessions'),
  view('sessions/$sessionId', () => import('./views/conversation/session.tsx'), 'SessionView'),
  view('prepared-replies', () => import('./views/conversation/prepared-replies.tsx'), 'PreparedReplies'),
  view('actors', () => import('./views/conversation/end-users.tsx'), 'EndUsers'),
  view('actors/$actorId', () => import('./views/conversation/end-user.tsx'), 'EndUserView'),
  view('orchestrations', () => import('./views/automation/orchestrations.tsx'), 'Orchestrations'),
  view('orchestrations/new', () => import('./views/automation/orchestration-form.tsx'), 'NewOrchestration'),
  view('orchestrations/$orchestrationId', () => import('./views/automation/orchestration.tsx'), 'OrchestrationView'),
  view(
    'orchestrations/$orchestrationId/edit',
    () => import('./views/automation/orchestration-form.tsx'),
    'EditOrchestration',
  ),
  view('runs', () => import('./views/automation/runs.tsx'), 'Runs'),
  view('runs/$runId', () => import('./views/automation/run.tsx'), 'RunView'),
  view('conversations', () => import('./views/conversation/conversations.tsx'), 'Conversations'),
  view('conversations/$conversationId', () => import('./views/conversation/conversation.tsx'), 'ConversationView'),
  view('traces', () => import('./views/execution/traces.tsx'), 'Traces'),
  view('traces/$traceId', () => import('./views/execution/trace.tsx'), 'TraceView'),
  view('chains', () => import('./views/execution/chains.tsx'), 'Chains'),
  view('chains/$chainId', () => import('./views/execution/chain.tsx'), 'ChainView'),
  view('feedback', () => import('./views/conversation/feedback.tsx'), 'FeedbackTotals'),
  view('copy', () => import('./views/project/project-copy.tsx'), 'ProjectCopy'),
  view('inbox', () => import('./views/project/inbox.tsx'), 'Inbox'),
  view('datasets', () => import('./views/evaluation/datasets.tsx'), 'Datasets'),
  view('datasets/$datasetId', () => import('./views/evaluation/dataset.tsx'), 'DatasetView'),
  view('evals', () => import('./views/evaluation/evals.tsx'), 'Evals'),
  view('evals/$evalId', () => import('./views/evaluation/eval.tsx'), 'EvalView'),
  view('evals/$evalId/runs/$evalRunId', () => import('./views/evaluation/eval-run.tsx'), 'EvalRunView'),
  view('cases', () => import('./views/automation/cases.tsx'), 'Cases'),
  view('cases/$caseId', () => import('./views/automation/case.tsx'), 'CaseView'),
  view('cases/$caseId/executions/$executionId', () => import('./views/automation/execution.tsx'), 'ExecutionView'),
  view('playbooks', () => import('./views/automation/playbooks.tsx'), 'Playbooks'),
  view('playbooks/$playbookId', () => import('./views/automation/playbook.tsx'), 'PlaybookView'),
  view('workflows', () => import('./views/automation/workflows.tsx'), 'Workflows'),
  view('workflows/new', () => import('./views/automation/workflow-form.tsx'), 'NewWorkflow'),
  view('workflows/$workflowId', () => import('./views/automation/workflow.tsx'), 'WorkflowView'),
  view('workflows/$workflowId/edit', () => import('./views/automation/workflow-form.tsx'), 'EditWorkflow'),
  view('triggers', () => import('./views/automation/triggers.tsx'), 'Triggers'),
  view('triggers/$triggerId', () => import('./views/automation/trigger.tsx'), 'TriggerView'),
  view('triggers/$triggerId/firings/$firingId', () => import('./views/automation/firing.tsx'), 'FiringView'),
  view('webhooks', () => import('./views/control/webhooks.tsx'), 'Webhooks'),
  view('webhooks/$webhookId', () => import('./views/control/webhook.tsx'), 'WebhookView'),
  view('webhooks/$webhookId/deliveries/$deliveryId', () => import('./views/control/delivery.tsx'), 'DeliveryView'),
  view('events', () => import('./views/control/events.tsx'), 'Events'),
  view('events/$eventId', () => import('./views/control/event.tsx'), 'EventView'),
  view('queue', () => import('./views/control/queue.tsx'), 'Queue'),
  view('queue/$queue', () => import('./views/control/queue-messages.tsx'), 'QueueMessages'),
  view('usage', () => import('./views/control/usage.tsx'), 'Usage'),
  view('audit', () => import('./views/control/audit.tsx'), 'Audit'),
  view('audit/$entryId', () => import('./views/control/audit-entry.tsx'), 'AuditEntryView'),
  view('settings', () => import('./views/project/settings.tsx'), 'Settings'),
  view('keys', () => import('./views/identity/keys.tsx'), 'Keys'),
  view('secrets', () => import('./views/identity/secrets.tsx'), 'Secrets'),
  view('policies', () => import('./views/identity/policies.tsx'), 'Policies'),
  view('policies/new', () => import('./views/identity/policy.tsx'), 'NewPolicy'),
  view('policies/$policyId', () => import('./views/identity/policy.tsx'), 'PolicyView'),
  view('users', () => import('./views/identity/users.tsx'), 'Users'),
  view('users/$userId', () => import('./views/identity/user.tsx'), 'UserView'),
  view('apps', () => import('./views/identity/apps.tsx'), 'Apps'),
  view('formations', () => import('./views/formations/formations.tsx'), 'Formations'),
  view('formations/new', () => import('./views/formations/formation-plan.tsx'), 'NewFormation'),
  view('formations/$formationId', () => import('./views/formations/formation.tsx'), 'FormationView'),
]

// A separate route: the router shows nothing where one unknown address follows another.
const unknown = createRoute({ getParentRoute: () => root, path: '$', component: NotFound })

export const router = createRouter({
  routeTree: root.addChildren([home, project.addChildren(views), unknown]),
  basepath: '/app',
  // Filters are texts: the address has them as they are.
  parseSearch: text => Object.fromEntries(new URLSearchParams(text)),
  stringifySearch: search => {
    const text = new URLSearchParams(search as Record<string, string>).toString()
    return text && `?${text}`
  },
  defaultPreload: 'intent',
  // What a person does in the view of one record does not continue in the view of another.
  defaultRemountDeps: ({ params }) => params,
  defaultPendingComponent: Loading,
  defaultErrorComponent: Crashed,
  defaultNotFoundComponent: NotFound,
  scrollRestoration: false,
})

/** Loads the view of an address; an address without a view is explained once it is shown. */
export function preloadView(address: string): void {
  const { pathname } = new URL(address, location.origin)
  router.preloadRoute({ to: pathname.replace(/^\/app/, '') || '/' }).catch(() => {})
}

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router
  }
}
