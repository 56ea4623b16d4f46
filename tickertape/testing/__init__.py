"""What plugin authors test with, shipped in the wheel. Nothing is imported here: the pytest plugin must stay light.

runner.RunnerConformance     what every ModelRunner must do; override the fixture `subject`
subject.Subject              a runner, and the truth about its model
models                       tiny models made on the fly: write_llama, write_scripted, plain_model
stepper.Stepper              batches made by hand, without the scheduler
serving.serve, serving.ask   whole requests through the scheduler and the engine loop
checks.check_idle            the common end check
"""
