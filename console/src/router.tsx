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
  view('sessions', () => import('./views/sessions.tsx'), 'Sessions'),
  view('sessions/$sessionId', () => import('./views/session.tsx'), 'SessionView'),
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
]

export const router = createRouter({
  routeTree: root.addChildren([home, project.addChildren(views)]),
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

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router
  }
}
