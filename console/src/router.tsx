import { createRootRoute, createRoute, createRouter, lazyRouteComponent } from '@tanstack/react-router'
import { Crashed } from './components/crashed.tsx'
import type { Filters } from './components/filters.ts'
import { Loading, NotFound } from './components/states.tsx'
import { Home } from './shell/home.tsx'
import { Shell } from './shell/shell.tsx'

/** Addresses of the views. Each view is a chunk of its own; its filters are part of its address. */

const root = createRootRoute({ component: Shell })
const home = createRoute({ getParentRoute: () => root, path: '/', component: Home })
const project = createRoute({ getParentRoute: () => root, path: '/p/$projectId' })

const view = <Path extends string>(path: Path, load: () => Promise<any>, component: string) =>
  createRoute({
    getParentRoute: () => project,
    path,
    component: lazyRouteComponent(load, component),
    validateSearch: (search: Filters): Filters => search,
  })

const views = [
  view('start', () => import('./views/start.tsx'), 'Start'),
  view('overview', () => import('./views/overview.tsx'), 'Overview'),
  view('agents', () => import('./views/agents.tsx'), 'Agents'),
  view('agents/new', () => import('./views/agent-form.tsx'), 'NewAgent'),
  view('agents/$agentId', () => import('./views/agent.tsx'), 'AgentView'),
  view('playground', () => import('./views/playground.tsx'), 'Playground'),
  view('tools', () => import('./views/tools.tsx'), 'Tools'),
  view('tools/$toolId', () => import('./views/tool.tsx'), 'ToolView'),
  view('guardrails', () => import('./views/guardrails.tsx'), 'Guardrails'),
  view('guardrails/$guardrailId', () => import('./views/guardrail.tsx'), 'GuardrailView'),
  view('files', () => import('./views/files.tsx'), 'Files'),
  view('files/$fileId', () => import('./views/file.tsx'), 'FileView'),
  view('documents', () => import('./views/documents.tsx'), 'Documents'),
  view('documents/$documentId', () => import('./views/document.tsx'), 'DocumentView'),
  view('search', () => import('./views/search.tsx'), 'Search'),
  view('memory', () => import('./views/memory.tsx'), 'Memory'),
  view('memory/$storeId', () => import('./views/memory-store.tsx'), 'MemoryStoreView'),
  view('memory/$storeId/$memoryId', () => import('./views/memory-fact.tsx'), 'MemoryFactView'),
  view('sessions', () => import('./views/sessions.tsx'), 'Sessions'),
  view('sessions/$sessionId', () => import('./views/session.tsx'), 'SessionView'),
  view('orchestrations', () => import('./views/orchestrations.tsx'), 'Orchestrations'),
  view('orchestrations/new', () => import('./views/orchestration-form.tsx'), 'NewOrchestration'),
  view('orchestrations/$orchestrationId', () => import('./views/orchestration.tsx'), 'OrchestrationView'),
  view('runs', () => import('./views/runs.tsx'), 'Runs'),
  view('runs/$runId', () => import('./views/run.tsx'), 'RunView'),
  view('conversations', () => import('./views/conversations.tsx'), 'Conversations'),
  view('conversations/$conversationId', () => import('./views/conversation.tsx'), 'ConversationView'),
  view('traces', () => import('./views/traces.tsx'), 'Traces'),
  view('traces/$traceId', () => import('./views/trace.tsx'), 'TraceView'),
  view('inbox', () => import('./views/inbox.tsx'), 'Inbox'),
  view('datasets', () => import('./views/datasets.tsx'), 'Datasets'),
  view('datasets/$datasetId', () => import('./views/dataset.tsx'), 'DatasetView'),
  view('evals', () => import('./views/evals.tsx'), 'Evals'),
  view('evals/$evalId', () => import('./views/eval.tsx'), 'EvalView'),
  view('evals/$evalId/runs/$evalRunId', () => import('./views/eval-run.tsx'), 'EvalRunView'),
  view('cases', () => import('./views/cases.tsx'), 'Cases'),
  view('cases/$caseId', () => import('./views/case.tsx'), 'CaseView'),
  view('cases/$caseId/executions/$executionId', () => import('./views/execution.tsx'), 'ExecutionView'),
  view('playbooks', () => import('./views/playbooks.tsx'), 'Playbooks'),
  view('playbooks/$playbookId', () => import('./views/playbook.tsx'), 'PlaybookView'),
  view('workflows', () => import('./views/workflows.tsx'), 'Workflows'),
  view('workflows/$workflowId', () => import('./views/workflow.tsx'), 'WorkflowView'),
  view('triggers', () => import('./views/triggers.tsx'), 'Triggers'),
  view('triggers/$triggerId', () => import('./views/trigger.tsx'), 'TriggerView'),
  view('triggers/$triggerId/firings/$firingId', () => import('./views/firing.tsx'), 'FiringView'),
  view('webhooks', () => import('./views/webhooks.tsx'), 'Webhooks'),
  view('webhooks/$webhookId', () => import('./views/webhook.tsx'), 'WebhookView'),
  view('webhooks/$webhookId/deliveries/$deliveryId', () => import('./views/delivery.tsx'), 'DeliveryView'),
  view('events', () => import('./views/events.tsx'), 'Events'),
  view('events/$eventId', () => import('./views/event.tsx'), 'EventView'),
  view('queue', () => import('./views/queue.tsx'), 'Queue'),
  view('queue/$queue', () => import('./views/queue-messages.tsx'), 'QueueMessages'),
  view('usage', () => import('./views/usage.tsx'), 'Usage'),
  view('audit', () => import('./views/audit.tsx'), 'Audit'),
  view('audit/$entryId', () => import('./views/audit-entry.tsx'), 'AuditEntryView'),
  view('settings', () => import('./views/settings.tsx'), 'Settings'),
  view('keys', () => import('./views/keys.tsx'), 'Keys'),
  view('secrets', () => import('./views/secrets.tsx'), 'Secrets'),
  view('policies', () => import('./views/policies.tsx'), 'Policies'),
  view('policies/new', () => import('./views/policy.tsx'), 'NewPolicy'),
  view('policies/$policyId', () => import('./views/policy.tsx'), 'PolicyView'),
  view('users', () => import('./views/users.tsx'), 'Users'),
  view('users/$userId', () => import('./views/user.tsx'), 'UserView'),
  view('apps', () => import('./views/apps.tsx'), 'Apps'),
  view('formations', () => import('./views/formations.tsx'), 'Formations'),
  view('formations/new', () => import('./views/formation-plan.tsx'), 'NewFormation'),
  view('formations/$formationId', () => import('./views/formation.tsx'), 'FormationView'),
]

// A route of its own: the router shows nothing where one unknown address follows another.
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
  defaultPendingComponent: Loading,
  defaultErrorComponent: Crashed,
  defaultNotFoundComponent: NotFound,
  scrollRestoration: false,
})

/** Loads the view of an address; one that has none is explained once it is shown. */
export function preloadView(address: string): void {
  const { pathname } = new URL(address, location.origin)
  router.preloadRoute({ to: pathname.replace(/^\/app/, '') || '/' }).catch(() => {})
}

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router
  }
}
