import { createRoute, lazyRouteComponent } from '@tanstack/react-router'
import type { Filters } from './components/filters.ts'
import { router } from './router.tsx'

/** Adds the addresses of the views of end users to the router. */
export function addEndUserRoutes(): void {
  const project = router.routesById['/p/$projectId']
  const view = (path: string, component: ReturnType<typeof lazyRouteComponent>) =>
    createRoute({
      getParentRoute: () => project,
      path,
      component,
      validateSearch: (search: Filters): Filters => search,
    })
  const list = lazyRouteComponent(() => import('./views/conversation/end-users.tsx'), 'EndUsers')
  const page = lazyRouteComponent(() => import('./views/conversation/end-user.tsx'), 'EndUserView')
  project.addChildren([...(project.children as []), view('actors', list), view('actors/$actorId', page)] as never)
  router.setRoutes(router.buildRouteTree())
}
