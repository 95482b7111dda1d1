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
  view('orchestrations', () => import('./views/orchestrations.tsx'), 'Orchestrations'),
  view('orchestrations/new', () => import('./views/orchestration-form.tsx'), 'NewOrchestration'),
  view('orchestrations/$orchestrationId', () => import('./views/orchestration.tsx'), 'OrchestrationView'),
  view('runs', () => import('./views/runs.tsx'), 'Runs'),
  view('runs/$runId', () => import('./views/run.tsx'), 'RunView'),
  view('traces', () => import('./views/traces.tsx'), 'Traces'),
  view('traces/$traceId', () => import('./views/trace.tsx'), 'TraceView'),
  view('inbox', () => import('./views/inbox.tsx'), 'Inbox'),
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
