import feedbackFields from 'fields:putGenerationFeedback'
import { Badge, Group, Stack, Text } from '@mantine/core'
import type { Feedback, FeedbackInput } from '@muster/client'
import * as strings from '#strings.ts'
import { type Stale, useAction } from './actions.tsx'
import { SchemaForm } from './schema-form.tsx'
import { visible } from './text.tsx'

const RATINGS = { good: 1, bad: -1 } as const
const schema = {
  properties: {
    ...feedbackFields.properties,
    rating: { type: 'string', enum: [strings.feedback.good, strings.feedback.bad] },
  },
}

/** What people said of a reply. */
export function FeedbackList({ rows }: { rows: Feedback[] }) {
  return (
    <Stack gap={6} mt="xs">
      {rows.map(({ id, rating, score, labels, comment, author }) => (
        <Stack gap={2} key={id} component="section" aria-label={strings.feedback.title}>
          <Group gap={6}>
            {rating !== null && (
              <Badge variant="default">{rating > 0 ? strings.feedback.good : strings.feedback.bad}</Badge>
            )}
            {score !== null && <Badge variant="default">{strings.search.score(score)}</Badge>}
            {labels.map(label => (
              <Badge key={label} variant="default">
                {visible(label)}
              </Badge>
            ))}
            <Text size="xs" c="dimmed">
              {strings.feedback.authors[author.type]}
            </Text>
          </Group>
          {comment && <Text size="sm">{visible(comment)}</Text>}
        </Stack>
      ))}
    </Stack>
  )
}

/** Rates a reply. Each user has one feedback on it, which a later one replaces. */
export function FeedbackForm({
  own,
  put,
  stale,
  onDone,
}: {
  /** The feedback that the user gave before. */
  own?: Feedback
  put: (feedback: FeedbackInput) => PromiseLike<unknown>
  stale: Stale
  onDone: () => void
}) {
  const save = useAction({
    run: async ({ rating, ...others }: Record<string, unknown>) =>
      put({
        ...(rating ? { rating: rating === strings.feedback.good ? RATINGS.good : RATINGS.bad } : {}),
        ...others,
      }),
    stale,
    message: strings.feedback.saved,
    onDone,
  })
  const rating = own?.rating ? { rating: own.rating > 0 ? strings.feedback.good : strings.feedback.bad } : {}
  return (
    <SchemaForm
      schema={schema}
      only={['rating', 'labels', 'comment', 'score']}
      start={own && { ...rating, labels: own.labels, comment: own.comment, score: own.score }}
      isPending={save.isPending}
      error={save.error}
      onSubmit={save.mutate}
      onCancel={onDone}
    />
  )
}
