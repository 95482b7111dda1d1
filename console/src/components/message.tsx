import { Badge, Box, Card, Group, Text } from '@mantine/core'
import type { SessionMessage } from '@muster/client'
import { type ReactNode, Suspense } from 'react'
import * as strings from '#strings.ts'
import { DraftScope } from './draft.tsx'
import { onDemand } from './on-demand.tsx'
import { visible, When } from './text.tsx'

const Markdown = onDemand(async () => (await import('./markdown.tsx')).default)

type Author = Pick<SessionMessage, 'origin'> & { author_name?: string | null }

/** Returns who wrote a message: the operator by name, others by the origin. */
export const authorOf = ({ author_name, origin }: Author): string =>
  visible(author_name ?? strings.sessions.roles[origin])

/** Who wrote something, and when. */
export function MessageHead({
  name,
  at,
  badge,
  menu,
}: {
  name: string
  at: string
  badge?: ReactNode
  menu?: ReactNode
}) {
  return (
    <Group gap="sm" mb={4} justify="space-between" wrap="nowrap">
      <Group gap="sm">
        <Text size="sm" fw={600}>
          {name}
        </Text>
        {badge}
        <Text size="xs" c="dimmed" component="div">
          <When at={at} />
        </Text>
      </Group>
      {menu}
    </Group>
  )
}

/** A message of a conversation. */
export function MessageCard({
  message: { document_id, role, origin, content, parts, author_name, created_at },
  menu,
  children,
}: {
  message: Pick<SessionMessage, 'document_id' | 'role' | 'origin' | 'content' | 'parts' | 'created_at'> & {
    author_name?: string | null
  }
  menu?: ReactNode
  children?: ReactNode
}) {
  const isReply = role === 'assistant'
  const attachments = ((parts ?? []) as { type?: string; filename?: string; file_id?: string }[]).filter(
    ({ type }) => type !== 'text',
  )
  return (
    <Box maw="85%" miw="min(280px, 100%)" style={{ alignSelf: isReply ? 'flex-start' : 'flex-end' }}>
      <Card withBorder padding="md" radius="lg" bg={isReply ? undefined : 'var(--mantine-color-default-hover)'}>
        <MessageHead
          name={authorOf({ author_name, origin })}
          at={created_at}
          menu={<DraftScope value={document_id}>{menu}</DraftScope>}
        />
        {content && (
          <Suspense fallback={<Text className="wrap">{visible(content)}</Text>}>
            <Markdown text={content} />
          </Suspense>
        )}
        {attachments.map(({ filename, file_id, type }, index) => (
          <Badge key={index} variant="default" mt="xs">
            {strings.sessions.attachment}: {visible(filename ?? file_id ?? type ?? '')}
          </Badge>
        ))}
        {children}
      </Card>
    </Box>
  )
}
