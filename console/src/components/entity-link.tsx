import { Anchor } from '@mantine/core'
import { Link, useRouter } from '@tanstack/react-router'
import { RECORD_VIEWS } from './record-views.ts'
import { visible } from './text.tsx'

/** The ID or name of a record, as a link where the console has a view of its kind. */
export function EntityLink({
  kind,
  id,
  projectId,
  name,
}: {
  kind: string
  id: string
  projectId: string
  /** Shown in place of the ID. */
  name?: string
}) {
  const { routesByPath } = useRouter()
  const prefix = `/p/$projectId/${RECORD_VIEWS[kind]?.path}/$`
  const view = Object.keys(routesByPath).find(each => each.startsWith(prefix) && !each.includes('/', prefix.length))
  const className = name === undefined ? 'mono' : undefined
  if (!view) return <span className={className}>{visible(name ?? id)}</span>
  // As a parameter, an ID chosen by a caller cannot lead to another view.
  const params = { projectId, [view.slice(prefix.length)]: id }
  return (
    <Anchor component={Link} to={view} params={params as never} className={className} fz="inherit" underline="always">
      {visible(name ?? id)}
    </Anchor>
  )
}
