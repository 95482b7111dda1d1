import { Alert, Anchor, Button, Card, Group, List, Skeleton, Stack, Text, ThemeIcon, Title } from '@mantine/core'
import { useTimeout } from '@mantine/hooks'
import { IconAlertTriangle, IconFilterOff, IconLock, IconSearchOff } from '@tabler/icons-react'
import type { UseQueryResult } from '@tanstack/react-query'
import { type ReactNode, useEffect, useState } from 'react'
import { failureOf } from '#api.ts'
import type { Operation } from '#projects.ts'
import * as strings from '#strings.ts'
import { CopyText, visible } from './text.tsx'

/** A centred explanation with an action: empty lists, refusals, missing records. */
export function Notice({
  icon,
  title,
  children,
  action,
  color = 'gray',
}: {
  icon: ReactNode
  title: string
  children?: ReactNode
  action?: ReactNode
  color?: string
}) {
  return (
    <Card withBorder padding="xl" radius="lg">
      <Stack align="center" gap="xs" py="lg" ta="center">
        <ThemeIcon size={56} radius="xl" variant="light" color={color} mb="xs">
          {icon}
        </ThemeIcon>
        <Title order={2} size="h4">
          {title}
        </Title>
        {children && (
          <Text component="div" c="dimmed" maw={460}>
            {children}
          </Text>
        )}
        {action && <Group mt="md">{action}</Group>}
      </Stack>
    </Card>
  )
}

/** Problems that an error lists; the others are in its details. */
const LISTED_PROBLEMS = 20

/** Explains an error, with the data for a report. */
export function FailureAlert({
  error,
  title = strings.failed.action,
  onRetry,
}: {
  error: unknown
  title?: string
  onRetry?: () => void
}) {
  const { message, hint, code, requestId, docsUrl, problems = [] } = failureOf(error)
  const listed = problems.map(({ path, message }) => `${path} ${message}`)
  const report = [message, ...listed, hint, code, requestId].filter(Boolean).join('\n')
  return (
    <Alert icon={<IconAlertTriangle />} color="red" title={title} role="alert">
      <Text size="sm">{visible(code ? message : strings.failed.offline)}</Text>
      {problems.length > 0 && (
        <List size="sm" my={4}>
          {problems.slice(0, LISTED_PROBLEMS).map(problem => (
            <List.Item key={`${problem.path} ${problem.message}`}>
              <span className="mono">{visible(problem.path)}</span> {visible(problem.message)}
            </List.Item>
          ))}
        </List>
      )}
      {hint && (
        <Text size="sm" c="dimmed">
          {visible(hint)}
        </Text>
      )}
      <Group gap="md" mt="xs">
        {code && (
          <Text size="sm" className="mono">
            {code}
          </Text>
        )}
        {requestId && (
          <Text size="sm" c="dimmed">
            {strings.failed.requestId} <span className="mono">{requestId}</span>
          </Text>
        )}
        <CopyText text={report} label={strings.failed.copyReport} />
        {docsUrl && (
          <Anchor size="sm" underline="always" href={docsUrl} target="_blank" rel="noopener noreferrer">
            {strings.failed.docs}
          </Anchor>
        )}
      </Group>
      {onRetry && (
        <Button mt="sm" size="xs" variant="default" onClick={onRetry}>
          {strings.retry}
        </Button>
      )}
    </Alert>
  )
}

/** Says which permission is missing. */
export function Refused({ operation }: { operation?: Operation }) {
  return (
    <Notice icon={<IconLock />} title={strings.refused.title} color="yellow">
      {operation?.action ? strings.refused.needs(operation.action) : strings.refused.general}
    </Notice>
  )
}

export function NotFound() {
  return (
    <Notice
      icon={<IconSearchOff />}
      title={strings.missing.title}
      action={
        <Button component="a" href="/app" variant="default">
          {strings.missing.back}
        </Button>
      }
    >
      {strings.missing.text}
    </Notice>
  )
}

export function NothingMatches({ onClear }: { onClear: () => void }) {
  return (
    <Notice
      icon={<IconFilterOff />}
      title={strings.filtered.title}
      action={
        <Button variant="default" onClick={onClear}>
          {strings.filtered.clear}
        </Button>
      }
    />
  )
}

/** Skeleton after 200 ms, so that a fast answer does not flicker. */
export function Loading({ rows = 4 }: { rows?: number }) {
  const [isShown, setShown] = useState(false)
  const { start } = useTimeout(() => setShown(true), 200)
  useEffect(start, [start])
  return (
    <Stack gap="sm" role="status" aria-label={strings.loading} mih={120}>
      {isShown && Array.from({ length: rows }, (_, index) => <Skeleton key={index} height={44} radius="md" />)}
    </Stack>
  )
}

/** Shows the data of a query, or the state that it is in. */
export function Loaded<T>({
  query,
  operation,
  rows,
  children,
}: {
  query: UseQueryResult<T>
  /** The operation of the query, for the explanation of a refusal. */
  operation?: Operation
  rows?: number
  children: (data: T) => ReactNode
}) {
  const { data, error, refetch } = query
  const status = error ? failureOf(error).status : undefined
  if (status === 403) return <Refused operation={operation} />
  if (status === 404) return <NotFound />
  if (data === undefined)
    return error ? (
      <FailureAlert error={error} title={strings.failed.title} onRetry={() => void refetch()} />
    ) : (
      <Loading rows={rows} />
    )
  return (
    <>
      {error && (
        <Alert color="yellow" icon={<IconAlertTriangle />} mb="md" p="xs" role="status">
          {strings.failed.stale}
        </Alert>
      )}
      {children(data)}
    </>
  )
}
