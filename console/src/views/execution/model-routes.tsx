import { Stack, Text } from '@mantine/core'
import type { ModelRoute } from '@muster/client'
import { createModelRoute, listModelRoutes } from '@muster/client/operations'
import { IconPlus, IconRoute } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { useProviders } from '#choices.ts'
import { FormButton } from '#components/actions.tsx'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { ModelRouteForm } from './model-route-form.tsx'

const texts = strings.routes

/** Model routes of a project. */
export function ModelRoutes() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const providers = useProviders(projectId)
  const list = useList<ModelRoute>(['model-routes', projectId], async ({ q, provider }, bounds, signal) =>
    listModelRoutes(api, { project_id: projectId, name: q, ai_provider_id: provider, ...bounds }, { signal }).page(),
  )
  const columns: Column<ModelRoute>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ id, name }) => <RecordLink to={`/p/${projectId}/model-routes/${id}`}>{visible(name)}</RecordLink>,
    },
    {
      title: texts.targets,
      cell: ({ targets }) => (
        <Stack gap={0} component="ol" m={0} ps="md">
          {targets.map(({ ai_provider_id, model }, index) => (
            <Text component="li" size="sm" key={index}>
              {providers.nameOf(ai_provider_id)} <span className="mono">{visible(model)}</span>
            </Text>
          ))}
        </Stack>
      ),
    },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed(createModelRoute) && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => (
        <ModelRouteForm onDone={id => void navigate({ to: `/p/${projectId}/model-routes/${id}` })} onCancel={close} />
      )}
    />
  )
  return (
    <Page title={strings.nav.modelRoutes} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.modelRoutes}
        list={list}
        operation={listModelRoutes}
        columns={columns}
        fields={
          <>
            <SearchField />
            {providers.choices && providers.choices.length > 0 && (
              <ChoiceField name="provider" label={texts.provider} choices={providers.choices} />
            )}
          </>
        }
        empty={
          <Notice icon={<IconRoute />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
