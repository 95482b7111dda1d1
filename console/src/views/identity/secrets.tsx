import createFields from 'fields:createSecret'
import patchFields from 'fields:updateSecret'
import { Badge, Group, Stack, Text } from '@mantine/core'
import type { Secret } from '@muster/client'
import {
  createSecret,
  deleteSecret,
  listSecretReferences,
  listSecrets,
  rollbackSecret,
  updateSecret,
} from '@muster/client/operations'
import { IconLock, IconPlus } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { api } from '#api.ts'
import { ActionButton, FormButton, RowActions, useAction } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { type Column, ListView, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { Loaded, Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.secrets

/** Secrets of a project. Their values are written, and never shown. */
export function Secrets() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const key = ['secrets', projectId]
  const list = useList<Secret>(key, async ({ q }, bounds, signal) =>
    listSecrets(api, { project_id: projectId, name: q, ...bounds }, { signal }).page(),
  )
  const columns: Column<Secret>[] = [
    {
      title: texts.name,
      isWide: true,
      cell: ({ id, name, source }) => (
        <>
          <Text fw={600}>{visible(name)}</Text>
          <Text size="sm" c="dimmed" className="mono">
            {source ? `${source.type} ${visible(source.path)}` : id}
          </Text>
        </>
      ),
    },
    {
      title: texts.value,
      cell: ({ has_value, value_updated_at, source }) =>
        source ? (
          <Badge variant="default">{texts.external}</Badge>
        ) : has_value ? (
          <>
            {texts.set} <When at={value_updated_at} />
          </>
        ) : (
          <Badge variant="dot" color="orange">
            {texts.missing}
          </Badge>
        ),
    },
    {
      title: strings.expires,
      cell: ({ expires_at }) => (expires_at ? <When at={expires_at} /> : strings.keys.noExpiry),
    },
    {
      title: strings.actions,
      cell: secret => (
        <RowActions>
          {isAllowed(updateSecret) && (
            <>
              <FormButton
                label={texts.replace}
                size="xs"
                variant="default"
                form={close => <SecretForm secret={secret} onDone={close} />}
              />
              {secret.has_value && (
                <ActionButton
                  label={texts.rollback}
                  question={texts.rollbackText}
                  run={async () => rollbackSecret(api, { secret_id: secret.id })}
                  stale={[key]}
                  message={texts.rolledBack}
                />
              )}
            </>
          )}
          {isAllowed(listSecretReferences) && (
            <FormButton
              label={texts.references}
              size="xs"
              variant="default"
              form={() => <References secret={secret} />}
            />
          )}
          {isAllowed(deleteSecret) && (
            <ActionButton
              label={strings.remove}
              color="red"
              question={texts.deleteText(visible(secret.name))}
              run={async () => deleteSecret(api, { secret_id: secret.id })}
              stale={[key]}
            />
          )}
        </RowActions>
      ),
    },
  ]
  const create = isAllowed(createSecret) && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => <SecretForm onDone={close} />}
    />
  )
  return (
    <Page title={strings.nav.secrets} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.secrets}
        list={list}
        operation={listSecrets}
        columns={columns}
        fields={<SearchField />}
        empty={
          <Notice icon={<IconLock />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

function SecretForm({ secret, onDone }: { secret?: Secret; onDone: () => void }) {
  const projectId = useProjectId()
  const save = useAction({
    run: async (values: Values) =>
      secret
        ? updateSecret(api, { secret_id: secret.id, ...values })
        : createSecret(api, { project_id: projectId, ...values } as Parameters<typeof createSecret>[1]),
    stale: [['secrets', projectId]],
    message: texts.saved,
    onDone,
  })
  return (
    <SchemaForm
      schema={secret ? patchFields : createFields}
      initial={secret as Values | undefined}
      only={['name', 'value', 'source', 'expires_at']}
      submitLabel={secret ? strings.save : strings.create}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    />
  )
}

function References({ secret: { id, project_id } }: { secret: Secret }) {
  const references = useQuery({
    queryKey: ['secret', id, 'references'],
    queryFn: async ({ signal }) =>
      (await listSecretReferences(api, { secret_id: id, limit: 100 }, { signal }).page()).data,
  })
  return (
    <Loaded query={references} operation={listSecretReferences}>
      {rows =>
        rows.length === 0 ? (
          <Text c="dimmed">{texts.unused}</Text>
        ) : (
          <Stack gap="xs">
            {rows.map(({ type, id: of, field }) => (
              <Group key={`${of} ${field}`} gap="sm">
                <EntityLink kind={type} id={of} projectId={project_id} />
                <Text size="sm" c="dimmed">
                  {visible(field)}
                </Text>
              </Group>
            ))}
          </Stack>
        )
      }
    </Loaded>
  )
}
